"""AVSG's cache (section 3): a table from positions to slots and a life per slot, in place of an order of the slots.

An alternative `match` and `resolve` with the meaning of `ops`, but for who is replaced: hits are found by probing
a table (two hashes, `probes` + 1 buckets, a fingerprint), and misses go to slots whose life has run out. A table word
may be lost to another position's; its position is then fetched again, never found wrongly. Positions that occur twice
in a selection share a slot if they hit and take two if they miss.

Tokens of one step (MTP, section 3.6) are resolved in order by `resolve_tokens`: later ones hit what earlier ones
reserved, everything one step selects keeps its slot until the step ends, and `invalidate` then drops what is not
verified. The newest position sits in slot B as in `ops`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hisparse_kernels import avsg_reference, ops
from hisparse_kernels.backends import kernels_for
from hisparse_kernels.check import check, check_dims, check_state
from hisparse_kernels.reference import Plan, check_positions

MAX_SLOTS = 1 << 16
MAX_LIFE = 254


class Settings(NamedTuple):
    """life: L, how many steps an unselected slot lives at least if there is room; probes: R."""

    life: int = 127
    probes: int = 8


DEFAULTS = Settings()


class State(NamedTuple):
    """The caches of R rows with B slots each; updated in place."""

    slot_positions: Tensor  # int32 [R, B], -1 when empty
    life: Tensor  # uint8 [R, B], 0 when dead, L + 1 once selected
    table: Tensor  # int32 [R, buckets], a power of two: fingerprint << 16 | slot, -1 when free


def new_state(rows: int, slots: int, buckets: int | None = None, device: str | torch.device = "cpu") -> State:
    """Empty caches. buckets: a power of two, by default the least that is at least twice the slots.

    Raises ValueError.
    """
    if not 1 <= slots <= MAX_SLOTS:
        raise ValueError(f"{slots} slots are outside [1, {MAX_SLOTS}]")
    buckets = 1 << (2 * slots - 1).bit_length() if buckets is None else buckets
    if buckets < 2 or buckets & (buckets - 1):
        raise ValueError(f"buckets={buckets} is not a power of two above 1")
    positions = torch.full((rows, slots), -1, dtype=torch.int32, device=device)
    life = torch.zeros(rows, slots, dtype=torch.uint8, device=device)
    return State(positions, life, torch.full((rows, buckets), -1, dtype=torch.int32, device=device))


def match(
    selection: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    state: State,
    settings: Settings = DEFAULTS,
    *,
    first_token: bool = True,
) -> tuple[Tensor, Plan]:
    """Hits, victims and slots of one token's selection; arguments and results as of `ops.match`.

    first_token: of its step; every life then ages by one. Raises ValueError, with nothing changed.
    """
    selection, rows, seq_lens = _checked(selection, rows, seq_lens, state, settings)
    n, k = selection.shape
    device = selection.device
    out = torch.empty_like(selection)
    miss_slots, miss_positions = torch.empty_like(selection), torch.empty_like(selection)
    per_row = torch.empty_like(rows)
    how = state.table.shape[1].bit_length() - 1, settings.probes, settings.life + 1, first_token
    arguments = (selection, rows, seq_lens, *state, out, miss_slots, miss_positions, per_row, *how)
    kernels = kernels_for(device.type)
    if kernels is None:
        avsg_reference.match(*arguments)
    elif device.type == "cpu":
        kernels.module.avsg_match(*arguments, kernels.block_threads, torch.get_num_threads())
    else:
        width = state.slot_positions.shape[1] + k + state.table.shape[1]
        scratch = torch.empty(n, width, dtype=torch.int32, device=device)
        kernels.module.avsg_match(*arguments, scratch, torch.cuda.current_stream(device).cuda_stream)
    some = torch.arange(k, device=device) < per_row[:, None]
    plan_rows = rows[:, None].expand(n, k)[some]
    return out, Plan(plan_rows, miss_slots[some].long(), miss_positions[some].long(), per_row)


def resolve(
    selection: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    state: State,
    cache: Tensor,
    host: Tensor,
    page_table: Tensor,
    page_size: int,
    settings: Settings = DEFAULTS,
) -> tuple[Tensor, Plan]:
    """`match`, then the copies of `ops.replay`, divided evenly over all workers by the batch's misses."""
    slots, plan = match(selection, rows, seq_lens, state, settings)
    ops.replay(plan, cache, host, page_table, page_size)
    return slots, plan


def resolve_tokens(
    selection: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    state: State,
    cache: Tensor,
    host: Tensor,
    page_table: Tensor,
    page_size: int,
    settings: Settings = DEFAULTS,
) -> tuple[Tensor, Plan]:
    """Resolve the T tokens of one step in order in a shared cache, then fetch the misses of all at once.

    selection int32 [n, T, k]; seq_lens int32 [n, T], rising with the token. The host pool holds the records of all
    positions below each seq_len, the step's own included, so no slot is reserved: position seq_len - 1 is fetched
    as any other. Call `invalidate` when the step is over.

    Returns device slots int32 [n, T, k], all valid together, and the plan (per_row: the sum over a row's tokens).
    Raises ValueError for T * k > B (appendix B's bound), with nothing changed.
    """
    check_dims("selection", selection, 3)
    n, tokens, k = selection.shape
    seq_lens = check("seq_lens", seq_lens, torch.int32, (n, tokens), selection.device)
    if tokens * k > state.slot_positions.shape[1]:
        raise ValueError(f"{tokens} tokens of k={k} positions do not fit B={state.slot_positions.shape[1]} slots")
    for token in range(tokens):  # all of them before the first is matched
        _checked(selection[:, token].contiguous(), rows, seq_lens[:, token].contiguous(), state, settings)
    slots = torch.empty_like(selection)
    plans = []
    for token in range(tokens):
        beyond = seq_lens[:, token] + 1  # the position in the reserved slot is then one that nothing selects
        found = match(selection[:, token].contiguous(), rows, beyond, state, settings, first_token=token == 0)
        slots[:, token] = found[0]
        plans.append(found[1])
    where, at, positions, per_row = (torch.cat(lists) for lists in zip(*plans, strict=True))
    plan = Plan(where, at, positions, per_row.view(tokens, n).sum(0))
    ops.replay(plan, cache, host, page_table, page_size)
    return slots, plan


def invalidate(rows: Tensor, lengths: Tensor, state: State) -> None:
    """Forget every entry at or beyond its row's verified length: its host record may be overwritten (section 3.6).

    rows int64 [n], -1 for padding; lengths int32 [n]. Their slots are empty and dead afterwards.
    """
    real = (rows >= 0) & (rows < len(state.slot_positions))
    rows, lengths = rows[real], lengths[real]
    gone = state.slot_positions[rows] >= lengths[:, None]
    state.slot_positions[rows] = state.slot_positions[rows].masked_fill(gone, -1)
    state.life[rows] = state.life[rows].masked_fill(gone, 0)


def _checked(
    selection: Tensor, rows: Tensor, seq_lens: Tensor, state: State, settings: Settings
) -> tuple[Tensor, Tensor, Tensor]:
    device = state.slot_positions.device
    check_dims("selection", selection, 2)
    check_dims("slot_positions", state.slot_positions, 2)
    check_dims("table", state.table, 2)
    (n, k), (num_rows, num_slots) = selection.shape, state.slot_positions.shape
    buckets = state.table.shape[1]
    if k > num_slots:
        raise ValueError(f"k={k} selected positions do not fit B={num_slots} slots")
    if num_slots > MAX_SLOTS or buckets < 2 or buckets & (buckets - 1):
        raise ValueError(f"B={num_slots} slots and {buckets} buckets: at most {MAX_SLOTS}, and a power of two above 1")
    if not 1 <= settings.life <= MAX_LIFE or settings.probes < 0:
        raise ValueError(f"life={settings.life}, probes={settings.probes}: need 1 to {MAX_LIFE}, and at least 0")
    check_state("slot_positions", state.slot_positions, torch.int32, (num_rows, num_slots), device)
    check_state("life", state.life, torch.uint8, (num_rows, num_slots), device)
    check_state("table", state.table, torch.int32, (num_rows, buckets), device)
    selection = check("selection", selection, torch.int32, (n, k), device)
    rows = check("rows", rows, torch.int64, (n,), device)
    seq_lens = check("seq_lens", seq_lens, torch.int32, (n,), device)
    check_positions(selection, seq_lens, rows, num_rows)
    return selection, rows, seq_lens
