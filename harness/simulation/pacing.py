"""When requests arrive, in virtual time: a closed loop of workers, or given times (open loop, trace)."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request's turn, as `harness.loadgen.pacing.Dispatch` is for real time. Seconds since the first."""

    time_s: float
    number: int  # index into the point's requests
    worker: int


class Pacing(ABC):
    """Arrivals in order of time."""

    @abstractmethod
    def due(self, now_s: float) -> list[Arrival]:
        """Those at or before `now_s` that were not given yet, earliest first."""

    @abstractmethod
    def next_s(self) -> float | None:
        """When the next known one is due; None while none is."""

    @abstractmethod
    def ended(self, arrival: Arrival, now_s: float) -> None:
        """A request's last token came, or it was refused."""


class ClosedLoop(Pacing):
    """`concurrency` workers take requests 0 .. count-1 in order; each sends its next when its last ended."""

    def __init__(self, count: int, concurrency: int, stagger_s: float = 0.0):
        workers = min(concurrency, count)
        self._due = [(worker * stagger_s, worker) for worker in range(workers)]
        self._taken, self._count = 0, count

    def due(self, now_s: float) -> list[Arrival]:
        found = []
        while self._due and self._due[0][0] <= now_s and self._taken < self._count:
            time_s, worker = heapq.heappop(self._due)
            found.append(Arrival(time_s, self._taken, worker))
            self._taken += 1
        return found

    def next_s(self) -> float | None:
        return self._due[0][0] if self._due and self._taken < self._count else None

    def ended(self, arrival: Arrival, now_s: float) -> None:
        heapq.heappush(self._due, (now_s, arrival.worker))


class GivenTimes(Pacing):
    """Requests arrive at times of their own, whatever the server does; each has a worker of its own."""

    def __init__(self, times_s: Sequence[float]):
        """times_s: of request 0, 1, ...; any order."""
        self._queue = sorted((time_s, number) for number, time_s in enumerate(times_s))
        self._at = 0

    def due(self, now_s: float) -> list[Arrival]:
        first = self._at
        while self._at < len(self._queue) and self._queue[self._at][0] <= now_s:
            self._at += 1
        return [Arrival(time_s, number, number) for time_s, number in self._queue[first : self._at]]

    def next_s(self) -> float | None:
        return self._queue[self._at][0] if self._at < len(self._queue) else None

    def ended(self, arrival: Arrival, now_s: float) -> None:
        pass


class Delayed(Pacing):
    """Another pacing whose arrivals reach the engine a while after they are due; they keep their own times."""

    def __init__(self, inner: Pacing, delay_s: Callable[[int], float]):
        """delay_s: of a request, by its number."""
        self._inner, self._delay_s = inner, delay_s
        self._under_way: list[tuple[float, int, Arrival]] = []

    def due(self, now_s: float) -> list[Arrival]:
        for arrival in self._inner.due(now_s):
            reaches_s = arrival.time_s + self._delay_s(arrival.number)
            heapq.heappush(self._under_way, (reaches_s, arrival.number, arrival))
        found = []
        while self._under_way and self._under_way[0][0] <= now_s:
            found.append(heapq.heappop(self._under_way)[2])
        return found

    def next_s(self) -> float | None:
        known = [self._inner.next_s(), self._under_way[0][0] if self._under_way else None]
        return min((time_s for time_s in known if time_s is not None), default=None)

    def ended(self, arrival: Arrival, now_s: float) -> None:
        self._inner.ended(arrival, now_s)
