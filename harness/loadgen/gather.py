"""How many sockets are read in few wake-ups: what does so (`Gatherer`), of each socket (`Source`), for whom (`Owner`).

A wake-up costs as much as reading several sockets. As the kernel says when bytes came in (`stamps`), they may lie
for a while: when they come quickly, one look in a few milliseconds takes whatever there is. The wait must not
bring two events of one stream together, whose times would become one, nor keep a worker from its next request for
long: it depends on how closely events have followed each other, and on how long requests take. Where few events
come, and where the kernel does not stamp them, every arrival is read at once.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from typing import Protocol

# Reads of a stream that its owner is told of at once, which costs each a fraction of one at a time: few at first, as it
# is from their times that the gatherer learns how long it may wait; and not as many of each stream, so that streams in
# step do not all come at once.
FEW, MANY = 16, 128
_LONGEST_WAIT_S = 0.008  # asyncio's timers round up to whole milliseconds
_SHORTEST_WAIT_S = 0.001
_OF_GAP = 1 / 3  # of the time between two events of a stream, but for the closest tenth of them
_OF_REQUEST = 0.005  # of the time a request takes
_WORTH = 3  # events that a wait must bring to be worth its timer
_SAMPLE = 512  # events between two decisions about the wait


class Owner(Protocol):
    """Whose socket it is."""

    def arrived(self, times_s: list[float], wire: bytes, ends: list[int]) -> None:
        """Reads were made, the i-th of `wire` until ends[i] and come at times_s[i] (`time.perf_counter()` seconds)."""

    def ended(self, error: OSError | None) -> None:
        """No more can come: the other side closed the connection in order, or it broke."""


class Source(ABC):
    """One socket that is read. Its owner may be told at any time, within `look` too."""

    @abstractmethod
    def expect(self, earliest_s: float) -> None:
        """A request was sent, so that nothing of what comes came before; its owner wants to know of everything."""

    @abstractmethod
    def quiet(self, on: bool) -> None:
        """Whether reads that end as events usually do (`alike.USUAL_END`) may lie until there are many."""

    @abstractmethod
    def look(self) -> None:
        """Read all that is here, and tell its owner now."""

    @abstractmethod
    def stop(self) -> None:
        """Do not read it any more; before the socket is closed. What lies is lost."""


class Gatherer(ABC):
    """Reads sockets and tells their owners, from the event loop. To be closed after its sources were stopped."""

    def __init__(self) -> None:
        self._decided_s = time.perf_counter()
        self.wait_s = 0.0
        self.gaps_s: list[float] = []  # appended by whoever reads events: from the one before in their stream
        self.last_took_s = 1.0  # a request, so written

    @property
    @abstractmethod
    def kind(self) -> str:
        """What reads, for the record."""

    @abstractmethod
    def add(self, sock: socket.socket, owner: Owner) -> Source:
        """Read `sock` from now on."""

    @abstractmethod
    def close(self) -> None:
        """Nothing is read any more."""

    def decide(self) -> bool:
        """How long what arrives may lie (`wait_s`), from events enough; whether there were so many."""
        count, now_s = len(self.gaps_s), time.perf_counter()
        if count < _SAMPLE:
            return False
        self.gaps_s.sort()
        gap_s = self.gaps_s[count // 10]
        self.gaps_s.clear()
        wait_s = min(_LONGEST_WAIT_S, _OF_GAP * gap_s, _OF_REQUEST * self.last_took_s)
        worth_it = wait_s >= _SHORTEST_WAIT_S and wait_s * count >= _WORTH * (now_s - self._decided_s)
        self.wait_s = wait_s if worth_it else 0.0
        self._decided_s = now_s
        return True
