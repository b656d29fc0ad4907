"""Plain torch formulation of every operation: the judge of the compiled kernels, and what runs without a compiler.

Shapes: n rows of the batch, k selected positions, R cache rows, B slots a row, W record width (elements),
H host records. A cache row has B + 1 slots: 0..B-1 are replaced by recency, slot B is reserved for the
newest position. A *device slot* is flat: `row * (B + 1) + slot`.

Order within a row (HiSparse, section 3.2 and 3.4): old to new, stale slots first, then this step's misses
in selection order, then its hits in their old order; miss i takes the i-th oldest evictable slot.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_NO_POSITION = torch.iinfo(torch.int32).max


class Plan(NamedTuple):
    """The misses of one resolve: what to copy, in (row, selection) order. m misses in all.

    The three lists may be longer than the sum of `per_row`; what is behind it then means nothing.
    """

    rows: Tensor  # int64 [m], cache rows
    slots: Tensor  # int64 [m], slots within the row
    positions: Tensor  # int64 [m]
    per_row: Tensor  # int64 [n], misses of each batch row


def resolve(
    selection: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    slot_positions: Tensor,
    lru_order: Tensor,
    cache: Tensor,
    host: Tensor,
    page_table: Tensor,
    page_size: int,
    *,
    checked: bool = True,
) -> tuple[Tensor, Plan]:
    """Turn one layer's selection into device slots, fetching what is missing (HiSparse, section 3.4).

    cache [R, B + 1, W], host [H, W] and page_table as in `replay`, the rest as in `match`.
    """
    slots, plan = match(selection, rows, seq_lens, slot_positions, lru_order, checked=checked)
    replay(plan, cache, host, page_table, page_size)
    return slots, plan


def replay(plan: Plan, cache: Tensor, host: Tensor, page_table: Tensor, page_size: int) -> None:
    """Copy a plan's records from the host pool into a layer's cache (section 3.5 for shared layers).

    cache [R, B + 1, W]; host [H, W]; page_table int32 [R, P]: position p of a row is host record
    page_table[row, p // page_size] * page_size + p % page_size.
    Raises IndexError where a move lies outside the pool or the cache.
    """
    total = min(int(plan.per_row.sum()), len(plan.rows))
    rows, slots, positions = plan.rows[:total], plan.slots[:total], plan.positions[:total]
    record = host_records(page_table, rows, positions, page_size)
    outside = (record < 0) | (record >= len(host)) | (slots < 0) | (slots >= cache.shape[1])
    if outside.any():
        raise IndexError(f"{int(outside.sum())} of the misses lie outside the host pool or the cache")
    flat = cache.view(-1, cache.shape[-1])
    flat.index_copy_(0, rows * cache.shape[1] + slots, host.index_select(0, record))


def match(
    selection: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    slot_positions: Tensor,
    lru_order: Tensor,
    *,
    checked: bool = True,
) -> tuple[Tensor, Plan]:
    """Everything of resolve but the copies: hits, victims, new order, slots (alone: the no-IO oracle).

    selection       int32 [n, k]   positions, -1 for none; duplicates share one slot and one fetch
    rows            int64 [n]      distinct cache rows; -1 for a padded row, whose output is -1
    seq_lens        int32 [n]      position seq_len - 1 is the newest and sits in slot B
    slot_positions  int32 [R, B]   position held by each slot, -1 when empty; updated in place
    lru_order       int32 [R, B]   slots from old to new; updated in place

    Returns device slots int32 [n, k] and the plan.
    Raises ValueError for k > B and, when checked, for positions outside [-1, seq_len) and rows outside [-1, R);
    nothing is changed then. Unchecked, such a position counts as -1 and such a row as padding.
    """
    if selection.shape[1] > slot_positions.shape[1]:
        raise ValueError(f"k={selection.shape[1]} selected positions do not fit B={slot_positions.shape[1]} slots")
    if checked:
        check_positions(selection, seq_lens, rows, len(slot_positions))
    real = ((rows >= 0) & (rows < len(slot_positions))).nonzero().squeeze(1)
    if len(real) < len(rows):
        slots = torch.full_like(selection, -1)
        per_row = torch.zeros_like(rows)
        some, plan = match(selection[real], rows[real], seq_lens[real], slot_positions, lru_order, checked=False)
        slots[real], per_row[real] = some, plan.per_row
        return slots, plan._replace(per_row=per_row)

    num_slots = slot_positions.shape[1]
    length = seq_lens.unsqueeze(1)
    valid = (selection >= 0) & (selection < length)
    newest = selection == length - 1
    wanted = torch.where(valid & ~newest, selection, _NO_POSITION)

    # Stage: sort the selection, so that equal positions are neighbours and the first of them stands for all.
    by_position, source = wanted.sort(dim=1, stable=True)
    first = torch.ones_like(by_position, dtype=torch.bool)
    first[:, 1:] = by_position[:, 1:] != by_position[:, :-1]
    first &= by_position != _NO_POSITION
    leader = torch.where(first, torch.arange(wanted.shape[1], device=wanted.device), 0).cummax(dim=1).values

    # Probe the slots from old to new: is what each holds selected?
    order = lru_order[rows].long()
    held = slot_positions[rows].gather(1, order)
    found_at = torch.searchsorted(by_position, held).clamp_(max=wanted.shape[1] - 1)
    hit = (by_position.gather(1, found_at) == held) & (held >= 0)

    # Scan: rank hits, evictable slots, and misses (in selection order).
    evictable_rank = (~hit).cumsum(1) - 1
    hit_rank = hit.cumsum(1) - 1
    leader_slot = torch.full(by_position.shape, -1, dtype=torch.int64)
    row_of_hit, at = hit.nonzero(as_tuple=True)
    leader_slot[row_of_hit, found_at[row_of_hit, at]] = order[row_of_hit, at]
    missing = torch.zeros_like(first).scatter_(1, source, first & (leader_slot < 0))
    miss_rank = missing.cumsum(1) - 1
    num_misses = missing.sum(1)
    num_evictable = num_slots - hit.sum(1)

    victims = torch.zeros_like(order).scatter_(1, torch.where(hit, num_slots - 1 - hit_rank, evictable_rank), order)
    row_of_miss, index = missing.nonzero(as_tuple=True)
    victim = victims[row_of_miss, miss_rank[row_of_miss, index]]
    position = selection[row_of_miss, index]

    # New order: stale, misses, hits.
    stale_end = (num_evictable - num_misses).unsqueeze(1)
    evicted = ~hit & (evictable_rank < num_misses.unsqueeze(1))
    place = torch.where(
        hit,
        num_evictable.unsqueeze(1) + hit_rank,
        torch.where(evicted, stale_end + evictable_rank, evictable_rank - num_misses.unsqueeze(1)),
    )
    lru_order[rows] = torch.empty_like(order).scatter_(1, place, order).to(lru_order.dtype)
    cache_row = rows[row_of_miss]
    slot_positions[cache_row, victim] = position

    # Publish: each selected position gets its leader's slot.
    missing_sorted = missing.gather(1, source)
    claimed = victims.gather(1, miss_rank.gather(1, source).clamp(min=0))
    leader_slot = torch.where(missing_sorted & first, claimed, leader_slot)
    slot_sorted = leader_slot.gather(1, leader)
    slot = torch.empty_like(slot_sorted).scatter_(1, source, slot_sorted)
    slot = torch.where(newest, num_slots, slot)
    flat = rows.unsqueeze(1) * (num_slots + 1) + slot
    plan = Plan(cache_row, victim, position.long(), num_misses)
    return torch.where(valid, flat, -1).to(torch.int32), plan


def check_positions(selection: Tensor, seq_lens: Tensor, rows: Tensor, num_rows: int) -> None:
    """The ValueErrors of `match`."""
    for i, row in enumerate(rows.tolist()):
        if not -1 <= row < num_rows:
            raise ValueError(f"rows[{i}] = {row} is outside [-1, {num_rows})")
    outside = (selection < -1) | (selection >= seq_lens.unsqueeze(1))
    outside &= (rows >= 0).unsqueeze(1)
    if outside.any():
        row, index = (int(x) for x in outside.nonzero()[0])
        raise ValueError(
            f"selection[{row}, {index}] = {int(selection[row, index])} is outside [-1, {int(seq_lens[row])})"
        )


def host_records(page_table: Tensor, rows: Tensor, positions: Tensor, page_size: int) -> Tensor:
    """Pool record (int64) of each (row, position) pair; the two broadcast against each other."""
    page = page_table[rows, positions.div(page_size, rounding_mode="floor")].long()
    return page * page_size + positions.remainder(page_size)


def append(
    records: Tensor, rows: Tensor, seq_lens: Tensor, slot_positions: Tensor, lru_order: Tensor, cache: Tensor
) -> None:
    """Put each row's newest record into its reserved slot (section 3.3, phase 4).

    While the sequence still fits the cache, the record that held the reserved slot moves to the oldest
    slot, which is then empty, and becomes the most recent: a sequence of at most B + 1 positions stays wholly
    resident and never needs the host. Later it is dropped; write-through has put it in the host pool.

    records [n, W]; rows int64 [n], distinct, -1 for padding; seq_lens int32 [n], the new record included; the rest
    as in `resolve`, updated in place.
    """
    real = (rows >= 0) & (rows < len(slot_positions))
    if not real.all():
        records, rows, seq_lens = records[real], rows[real], seq_lens[real]
    num_slots = slot_positions.shape[1]
    previous = seq_lens.long() - 2
    short = (previous >= 0) & (previous < num_slots)
    if short.any():
        grown = rows[short]
        slot = lru_order[grown, 0].long()
        cache[grown, slot] = cache[grown, num_slots]
        slot_positions[grown, slot] = previous[short].to(slot_positions.dtype)
        lru_order[grown] = lru_order[grown].roll(-1, dims=1)
    cache[rows, num_slots] = records


def load_row(row: int, length: int, slot_positions: Tensor, lru_order: Tensor, cache: Tensor, records: Tensor) -> None:
    """Begin a cache row with the last min(length - 1, B) positions before the newest, which goes to slot B.

    records [m + 1, W]: the records of positions length-1-m .. length-1, m = min(length - 1, B).
    Empty slots come first in the order, then the positions from old to new.
    """
    num_slots = slot_positions.shape[1]
    resident = min(length - 1, num_slots)
    first = length - 1 - resident
    device = slot_positions.device
    slot_positions[row] = -1
    slot_positions[row, :resident] = torch.arange(first, first + resident, dtype=torch.int32, device=device)
    lru_order[row] = torch.arange(num_slots, dtype=torch.int32, device=device).roll(-resident)
    cache[row, :resident] = records[:resident]
    cache[row, num_slots] = records[resident]


def write_through(cache: Tensor, rows: Tensor, host: Tensor, host_index: Tensor) -> None:
    """Copy each row's reserved slot (the newest record) to host record host_index (int64 [n], distinct).

    A row or host record of -1 is padding. Raises IndexError, with nothing changed, beyond the cache and the pool.
    """
    real = _real(rows, len(cache), "rows") & _real(host_index, len(host), "host_index")
    host.index_copy_(0, host_index[real], cache[rows[real], cache.shape[1] - 1])


def stage(records: Tensor, host: Tensor, host_index: Tensor) -> None:
    """Copy prefill's records [m, W] of one layer to host records host_index (int64 [m], distinct, -1 for padding).

    Raises IndexError, with nothing changed, beyond the pool.
    """
    real = _real(host_index, len(host), "host_index")
    host.index_copy_(0, host_index[real], records[real])


def load(host: Tensor, host_index: Tensor, out: Tensor) -> Tensor:
    """Copy host records host_index (int64 [m]) to out [m, W] on the device, and return it: the way back of `stage`.

    Raises IndexError for an index outside the pool.
    """
    return torch.index_select(host, 0, host_index, out=out)


def _real(index: Tensor, end: int, name: str) -> Tensor:
    outside = (index < -1) | (index >= end)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise IndexError(f"{name}[{at}] = {int(index[at])} is outside [-1, {end})")
    return index >= 0


def gather(pool: Tensor, slots: Tensor) -> Tensor:
    """Records [n, k, W] of flat slots int32 [n, k] in pool [..., W]; a -1 slot reads record 0 (mask it).

    Raises IndexError beyond the pool.
    """
    flat = pool.view(-1, pool.shape[-1])
    index = slots.clamp(min=0).flatten()
    return flat.index_select(0, index).view(*slots.shape, flat.shape[1])


def attend(
    q: Tensor, pool: Tensor, slots: Tensor, *, kv_heads: int, value_offset: int, value_dim: int, scale: float
) -> Tensor:
    """Sparse decode attention: one query per request over the records of its selected slots.

    q [n, H, d]; pool [..., W]; slots int32 [n, k], -1 for none; returns [n, H, value_dim], zeros for a request with
    no slot. KV head g of G has its key at g * d of a record and its value at value_offset + g * value_dim: GQA has
    value_offset = G * d; MLA has G = 1, value_offset = 0 and value_dim = kv_lora_rank (the query is absorbed).
    """
    n, heads, key_dim = q.shape
    records = gather(pool, slots).float()
    keys = records[..., : kv_heads * key_dim].view(n, -1, kv_heads, key_dim).permute(0, 2, 3, 1)
    values = records[..., value_offset : value_offset + kv_heads * value_dim]
    values = values.view(n, -1, kv_heads, value_dim).transpose(1, 2)
    scores = (q.float() * scale).view(n, kv_heads, heads // kv_heads, key_dim) @ keys
    valid = (slots >= 0)[:, None, None, :]
    weights = scores.masked_fill(~valid, -torch.inf).softmax(dim=-1).nan_to_num(0.0).masked_fill(~valid, 0.0)
    return (weights @ values).view(n, heads, value_dim).to(q.dtype)
