"""Random steps of AVSG's match: every implementation against the torch formulation, and what must hold of any."""

from __future__ import annotations

from dataclasses import dataclass

import hisparse_kernels as hk
import torch
from hisparse_kernels import avsg
from torch import Tensor


@dataclass
class AvsgCase:
    """Few buckets and probes make words collide, small spreads make hits."""

    num_slots: int
    top_k: int
    lengths: list[int]
    steps: int
    seed: int
    tokens: int = 1
    buckets: int = 64
    life: int = 7
    probes: int = 3
    spread: float = 0.5
    misses: int = 0


def avsg_battery() -> list[AvsgCase]:
    """Cases that together touch every phase."""
    return [
        AvsgCase(8, 8, [30, 200], 15, 1, buckets=2, probes=0),
        AvsgCase(300, 70, [900, 5000], 5, 2, tokens=4, buckets=512),
        AvsgCase(700, 650, [2000], 5, 3, buckets=1024, life=2),
        AvsgCase(96, 24, [400_000] * 2, 8, 4, tokens=3, buckets=128, spread=0.001),
    ]


def selections(case: AvsgCase, lengths: list[int], g: torch.Generator, distinct: bool = False) -> Tensor:
    """int32 [n, k] in [-1, length): the recent ones more often; with duplicates unless `distinct`."""
    lines = []
    for length in lengths:
        low = min(int((1 - case.spread) * length), max(length - case.top_k, 0))
        if distinct:
            drawn = torch.randperm(length - low, generator=g)[: case.top_k] + low
            drawn = torch.cat([drawn, torch.full((case.top_k - len(drawn),), -1)])
        else:
            drawn = torch.randint(low, length, (case.top_k,), generator=g)
        drawn[torch.rand(case.top_k, generator=g) < 0.05] = -1
        lines.append(drawn)
    return torch.stack(lines).int()


def run_avsg_steps(case: AvsgCase, device: str = "cpu") -> None:
    """AssertionError where the backend in force differs from the torch formulation, or breaks a promise."""
    g = torch.Generator().manual_seed(case.seed)
    n = len(case.lengths)
    ours = avsg.new_state(n + 1, case.num_slots, case.buckets, device)
    theirs = avsg.new_state(n + 1, case.num_slots, case.buckets)
    settings = avsg.Settings(case.life, case.probes)
    rows = torch.tensor([*range(1, n + 1), -1])
    for step in range(case.steps):
        held: list[tuple[Tensor, Tensor]] = []
        for token in range(case.tokens):
            lengths = [length + step * case.tokens + token for length in case.lengths]
            selection = selections(case, [*lengths, 5], g)
            seq_lens = torch.tensor([*lengths, 5], dtype=torch.int32)
            options = {"settings": settings, "first_token": token == 0}
            placed = (t.to(device) for t in (selection, rows, seq_lens))
            slots, plan = avsg.match(*placed, ours, **options)
            with hk.use_backend("reference"):
                expected, expected_plan = avsg.match(selection, rows, seq_lens, theirs, **options)
            assert torch.equal(slots.cpu(), expected), f"step {step}, token {token}: slots"
            for name, got, want in zip(plan._fields, plan, expected_plan, strict=True):
                assert torch.equal(got.cpu(), want), f"step {step}, token {token}: plan.{name}"
            for name, got, want in zip(ours._fields, ours, theirs, strict=True):
                assert torch.equal(got.cpu(), want), f"step {step}, token {token}: {name}"
            case.misses += int(plan.per_row.sum())
            held.append((selection, slots.cpu()))
            for earlier in held:
                assert_slots_hold(*earlier, ours.slot_positions.cpu(), seq_lens)


def assert_slots_hold(selection: Tensor, slots: Tensor, slot_positions: Tensor, seq_lens: Tensor) -> None:
    """Every slot that was given out holds the position that was asked for."""
    width = slot_positions.shape[1] + 1
    for i, (line, given) in enumerate(zip(selection.tolist(), slots.tolist(), strict=True)):
        for position, slot in zip(line, given, strict=True):
            if slot < 0:
                assert position < 0 or i == len(selection) - 1
            elif slot % width < width - 1:
                assert slot_positions[slot // width, slot % width] == position
            else:
                assert position <= seq_lens[i] - 1
