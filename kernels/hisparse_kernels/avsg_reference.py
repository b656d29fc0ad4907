"""Plain torch formulation of AVSG's match (section 3.3, appendix B): the judge of the compiled one, pass by pass."""

from __future__ import annotations

import torch
from torch import Tensor

_HASH_A, _HASH_B, _HASH_F = 2654435761, 2246822519, 3266489917


def match(
    selection: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    slot_positions: Tensor,
    life: Tensor,
    table: Tensor,
    out: Tensor,
    miss_slots: Tensor,
    miss_positions: Tensor,
    per_row: Tensor,
    bits: int,
    probes: int,
    full: int,
    decay: bool,
) -> None:
    """As avsg_cpu.cpp: fills out, the miss lists (the first per_row of each line) and the state of each row."""
    num_slots = slot_positions.shape[1]
    for i, row in enumerate(rows.tolist()):
        out[i], per_row[i] = -1, 0
        if row < 0:
            continue
        chosen, newest = selection[i].long(), int(seq_lens[i]) - 1
        wanted = (chosen >= 0) & (chosen < newest)
        where = torch.full_like(chosen, -1)
        cells = slot_positions[row], life[row], table[row]
        where[wanted], missed, slots = _one(chosen[wanted], *cells, bits, probes, full, decay)
        per_row[i] = len(slots)
        miss_slots[i, : len(slots)] = slots.int()
        miss_positions[i, : len(slots)] = missed.int()
        where[chosen == newest] = num_slots
        out[i] = torch.where(where >= 0, row * (num_slots + 1) + where, -1).int()


def _one(
    x: Tensor, positions: Tensor, life: Tensor, table: Tensor, bits: int, probes: int, full: int, decay: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Slots of the wanted positions x, and what missed with the slots it got."""
    if decay:
        life.sub_(life.ge(1).to(life.dtype))
    buckets = _buckets(x, bits, probes)  # [rounds, len(x)]
    held, valid = _held(table[buckets].long(), positions)
    found = valid & (held == x)
    slot = torch.where(found.any(0), _first(table[buckets].long() & 0xFFFF, found), -1)
    life[slot[slot >= 0]] = full

    misses = (slot < 0).nonzero().squeeze(1)
    if not len(misses):
        return slot, x[:0], slot[:0]
    ages = torch.bincount(life.long(), minlength=full + 1).cumsum(0)
    age = int((ages < len(misses)).sum())
    life.copy_((life.long() - age).clamp(min=0))
    dead = (life == 0).nonzero().squeeze(1)[: len(misses)]
    positions[dead], life[dead], slot[misses] = x[misses].int(), full, dead

    words = table[buckets[:, misses]].long()
    reusable = (words < 0) | ~_held(words, positions)[1]
    target = torch.where(reusable.any(0), _first(buckets[:, misses], reusable), -1)
    for j in reversed(range(len(misses))):  # the first of the writers of a bucket is the last to write here
        if target[j] >= 0:
            table[target[j]] = _words(x[misses[j]], dead[j]).int()
    return slot, x[misses], dead


def _buckets(x: Tensor, bits: int, probes: int) -> Tensor:
    start, stride = ((x * h & 0xFFFFFFFF) >> (32 - bits) for h in (_HASH_A, _HASH_B))
    rounds = torch.arange(probes + 1, device=x.device)[:, None]
    return (start + rounds * (stride | 1)) & ((1 << bits) - 1)


def _words(x: Tensor, slot: Tensor) -> Tensor:
    return ((x * _HASH_F & 0xFFFFFFFF) >> 17 << 16) | slot


def _held(words: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """What the slot of each word holds, and whether the word still belongs to it."""
    slot = words & 0xFFFF
    used = words >= 0
    held = positions[torch.where(used, slot, 0)].long()
    return held, used & (held >= 0) & (_words(held, slot) == words)


def _first(values: Tensor, which: Tensor) -> Tensor:
    """Of each column, the value of the first row that counts; any where none does."""
    return values.gather(0, which.int().argmax(0, keepdim=True)).squeeze(0)
