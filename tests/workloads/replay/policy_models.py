"""The policies again, slowly, over Python lists and sets: what the C++ replay is held to.

A model's `place` brings a position in, its `victim` names who leaves; `drive` has the rules common to all.
"""

from __future__ import annotations

from collections import OrderedDict, deque


class Model:
    """A cache of `slots` positions. `pinned` is what the step has selected so far."""

    def __init__(self, slots: int):
        self.slots, self.step = slots, -1
        self.at: dict[int, int] = {}  # slot by position
        self.free = list(range(slots, 0, -1))
        self.pinned: set[int] = set()

    def token(self, selection: list[int], newest: int, begins: bool) -> tuple[int, int]:
        if begins:
            self.pinned, self.step = set(), self.step + 1
        wanted = list(dict.fromkeys(p for p in selection if 0 <= p < newest))
        hits = [p for p in wanted if p in self.at]
        misses = [p for p in wanted if p not in self.at]
        self.pinned |= set(hits)
        for p in hits:
            self.hit(p)
        for p in misses:
            self.place(p)
            self.pinned.add(p)
        self.selected([p for p in selection if 0 <= p < newest])
        return len(wanted) + (newest in selection), len(misses)

    def place(self, p: int) -> None:
        self.missed(p)
        if self.free:
            slot = self.free.pop()
        else:
            leaving = self.victim()
            assert leaving in self.at and leaving not in self.pinned
            slot = self.at.pop(leaving)
            self.left(leaving)
        self.at[p] = slot
        self.came(p)

    def drop(self, p: int) -> None:
        if p in self.at:
            self.free.append(self.at.pop(p))
            self.forgotten(p)

    def out(self, order) -> list[int]:
        return [p for p in order if p not in self.pinned]

    def hit(self, p): ...
    def missed(self, p): ...
    def selected(self, positions): ...
    def came(self, p): ...
    def left(self, p):
        self.forgotten(p)

    def forgotten(self, p): ...
    def victim(self) -> int:
        raise NotImplementedError


class Fifo(Model):
    def __init__(self, slots):
        super().__init__(slots)
        self.order: list[int] = []

    def came(self, p):
        self.order.append(p)

    def forgotten(self, p):
        self.order.remove(p)

    def victim(self):
        return self.out(self.order)[0]


class LruPlain(Fifo):
    def selected(self, positions):
        for p in positions:
            self.order.remove(p)
            self.order.append(p)


class Clock(Model):
    def __init__(self, slots):
        super().__init__(slots)
        self.marked: set[int] = set()
        self.hand = 0

    def hit(self, p):
        self.marked.add(p)

    def forgotten(self, p):
        self.marked.discard(p)

    def victim(self):
        held = {slot: p for p, slot in self.at.items()}
        while True:
            self.hand = self.hand % self.slots + 1
            p = held[self.hand]
            if p in self.pinned:
                continue
            if p not in self.marked:
                return p
            self.marked.discard(p)


class BucketedLru(Model):
    def __init__(self, slots, buckets=8, steps=4):
        super().__init__(slots)
        self.buckets, self.width = buckets, steps
        self.period: dict[int, int] = {}

    def hit(self, p):
        self.period[p] = max(self.step, 0) // self.width if self.step >= 0 else 0

    came = hit

    def victim(self):
        now = max(self.step, 0) // self.width
        return min(self.out(self.at), key=lambda p: (-min(now - self.period[p], self.buckets - 1), self.at[p]))


class Lfu(Model):
    def __init__(self, slots):
        super().__init__(slots)
        self.used: OrderedDict[int, int] = OrderedDict()  # counts, least recently touched first

    def hit(self, p):
        self.used[p] += 1
        self.used.move_to_end(p)

    def came(self, p):
        self.used[p] = 1

    def forgotten(self, p):
        del self.used[p]

    def victim(self):
        return min(self.out(self.used), key=self.used.__getitem__)  # the first of equals


class Slru(Model):
    def __init__(self, slots, protected_percent=80):
        super().__init__(slots)
        self.room = slots * protected_percent // 100
        self.probation: list[int] = []
        self.protected: list[int] = []

    def hit(self, p):
        self.forgotten(p)
        self.protected.append(p)
        if len(self.protected) > self.room:
            self.probation.append(self.protected.pop(0))

    def came(self, p):
        self.probation.append(p)

    def forgotten(self, p):
        (self.probation if p in self.probation else self.protected).remove(p)

    def victim(self):
        return self.out(self.probation + self.protected)[0]


class S3Fifo(Model):
    def __init__(self, slots, small_percent=10):
        super().__init__(slots)
        self.small_room = max(1, slots * small_percent // 100)
        self.small: deque[int] = deque()
        self.main: deque[int] = deque()
        self.ghost: OrderedDict[int, None] = OrderedDict()
        self.uses: dict[int, int] = {}
        self.to_ghost = False

    def hit(self, p):
        self.uses[p] = min(self.uses[p] + 1, 3)

    def came(self, p):
        (self.main if p in self.ghost else self.small).append(p)
        self.ghost.pop(p, None)
        self.uses[p] = 0

    def forgotten(self, p):
        (self.small if p in self.small else self.main).remove(p)

    def left(self, p):
        self.forgotten(p)
        if self.to_ghost:
            self.ghost.pop(p, None)
            self.ghost[p] = None
            if len(self.ghost) > self.slots - self.small_room:
                self.ghost.popitem(last=False)

    def victim(self):
        while True:
            if len(self.small) >= self.small_room and (p := self._small()) is not None:
                return p
            if (p := self._main()) is not None:
                return p
            if (p := self._small()) is not None:
                return p

    def _small(self):
        self.to_ghost = True
        for p in self.out(self.small):
            if self.uses[p] < 2:
                return p
            self.uses[p] = 0
            self.small.remove(p)
            self.main.append(p)
        return None

    def _main(self):
        self.to_ghost = False
        while candidates := self.out(self.main):
            p = candidates[0]
            if self.uses[p] == 0:
                return p
            self.uses[p] -= 1
            self.main.remove(p)
            self.main.append(p)
        return None


class Arc(Model):
    def __init__(self, slots):
        super().__init__(slots)
        self.lists: tuple[list[int], list[int]] = ([], [])
        self.ghosts: tuple[list[int], list[int]] = ([], [])
        self.share, self.back, self.keeps_ghost = 0.0, -1, True

    def hit(self, p):
        self.forgotten(p)
        self.lists[1].append(p)

    def missed(self, p):
        (once, often), (b1, b2) = self.lists, self.ghosts
        self.back, self.keeps_ghost = (0 if p in b1 else 1 if p in b2 else -1), True
        if self.back == 0:
            self.share = min(self.share + max(len(b2) / len(b1), 1), self.slots)
            b1.remove(p)
        elif self.back == 1:
            self.share = max(self.share - max(len(b1) / len(b2), 1), 0)
            b2.remove(p)
        elif len(once) + len(b1) >= self.slots:
            self.keeps_ghost = bool(b1)
            del b1[:1]
        elif len(once) + len(often) + len(b1) + len(b2) >= 2 * self.slots:
            del b2[0]

    def came(self, p):
        self.lists[self.back >= 0].append(p)

    def forgotten(self, p):
        (self.lists[0] if p in self.lists[0] else self.lists[1]).remove(p)

    def left(self, p):
        which = int(p in self.lists[1])
        self.forgotten(p)
        if self.keeps_ghost:
            self.ghosts[which].append(p)

    def victim(self):
        once, often = self.lists
        n = len(once)
        first = not self.keeps_ghost or (n >= 1 and (n > self.share or (self.back == 1 and n == self.share)))
        return self.out(once + often if first else often + once)[0]


MODELS = {
    "fifo": Fifo,
    "lru_plain": LruPlain,
    "clock": Clock,
    "bucketed_lru": BucketedLru,
    "lfu": Lfu,
    "slru": Slru,
    "s3fifo": S3Fifo,
    "arc": Arc,
}


def drive(model: Model, rows: list[list[int]], seq_lens: list[int], *, tail: bool, tokens: int):
    """Per row (selected, misses), and the model's contents after it."""
    out, length = [], seq_lens[0]
    if tail:
        old, length = seq_lens[0] - 2, seq_lens[0] - 1
        for p in range(max(old - model.slots, 0), old):
            model.place(p)
    for i in range(0, len(rows), tokens):
        for p in range(length - 1, seq_lens[i] - 1):
            if 0 <= p < model.slots and p not in model.at:
                model.pinned = set()
                model.place(p)
        length = seq_lens[i]
        for j in range(i, min(i + tokens, len(rows))):
            out.append(model.token(rows[j], seq_lens[j] - 1, j == i))
        if tokens > 1:
            for p in range(length, seq_lens[min(i + tokens, len(rows)) - 1]):
                model.drop(p)
    return out
