"""The rules of the hierarchy in Python dicts and lists: what every implementation is held to.

HiSparse section 3.2 (order), 3.3 (newest position, write-through) and 3.4 (victims). Records are `bytes`.
"""

from __future__ import annotations


class RowModel:
    """One cache row. `slots[B]` is the reserved slot of the newest position."""

    def __init__(self, num_slots: int, empty: bytes = b""):
        self.slots: list[int | None] = [None] * num_slots  # what each slot holds
        self.order = list(range(num_slots))  # old to new
        self.records = [empty] * (num_slots + 1)  # the bytes in each slot
        self.fetched: list[tuple[int, int]] = []  # (slot, position) of the last resolve

    def begin(self, length: int, host: dict[int, bytes]) -> None:
        resident = min(length - 1, len(self.slots))
        first = length - 1 - resident
        self.slots = [first + i if i < resident else None for i in range(len(self.slots))]
        self.order = list(range(resident, len(self.slots))) + list(range(resident))
        for i in range(resident):
            self.records[i] = host[first + i]
        self.records[-1] = host[length - 1]

    def append(self, seq_len: int, record: bytes) -> None:
        previous = seq_len - 2
        if 0 <= previous < len(self.slots):
            slot = self.order.pop(0)
            self.slots[slot] = previous
            self.order.append(slot)
            self.records[slot] = self.records[-1]
        self.records[-1] = record

    def match(self, selection: list[int], seq_len: int) -> list[int]:
        newest = seq_len - 1
        wanted = list(dict.fromkeys(p for p in selection if 0 <= p < newest))
        hits = [s for s in self.order if self.slots[s] in wanted]
        evictable = [s for s in self.order if self.slots[s] not in wanted]
        held = {self.slots[s] for s in hits}
        misses = [p for p in wanted if p not in held]
        victims = evictable[: len(misses)]
        for slot, position in zip(victims, misses, strict=True):
            self.slots[slot] = position
        self.fetched = list(zip(victims, misses, strict=True))
        self.order = evictable[len(misses) :] + victims + hits
        where = {self.slots[s]: s for s in hits + victims}
        where[newest] = len(self.slots)
        return [where[p] if 0 <= p < seq_len else -1 for p in selection]

    def fetch(self, host: dict[int, bytes], plan: list[tuple[int, int]] | None = None) -> None:
        for slot, position in self.fetched if plan is None else plan:
            self.records[slot] = host[position]
