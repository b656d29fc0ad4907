"""Reads many sockets in few wake-ups: the event loop waits for one epoll that has them all.

A wake-up costs as much as reading several sockets. As the kernel says when bytes came in (`stamps`), they may lie
for a while: when they come quickly, one look in a few milliseconds takes whatever there is. The wait must not
bring two events of one stream together, whose times would become one, nor keep a worker from its next request for
long: it depends on how closely events have followed each other, and on how long requests take. Where few events
come, and where the kernel does not stamp them, every arrival is read at once.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from typing import Protocol

from harness.loadgen.stamps import STAMPED, Moment

_LONGEST_WAIT_S = 0.008  # asyncio's timers round up to whole milliseconds
_SHORTEST_WAIT_S = 0.001
_OF_GAP = 1 / 3  # of the time between two events of a stream, but for the closest tenth of them
_OF_REQUEST = 0.005  # of the time a request takes
_WORTH = 3  # events that a wait must bring to be worth its timer
_SAMPLE = 512  # events between two decisions about the wait


class Readable(Protocol):
    """What is read: takes in what has arrived, or some of it."""

    def read(self, moment: Moment) -> None: ...


class Gatherer:
    """Calls `read` of each socket's owner when something has arrived. To be closed after its sockets."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._owners: dict[int, Readable] = {}
        self._epoll = select.epoll() if STAMPED else None
        self._timer: asyncio.Handle | None = None  # of the next look, None when the loop waits for the epoll
        self._decided_s = time.perf_counter()
        self._wait_s = 0.0
        self.gaps_s: list[float] = []  # appended by whoever reads events: from the one before in their stream
        self.last_took_s = 1.0  # a request, so written
        if self._epoll:
            self._loop.add_reader(self._epoll, self._wake)

    def add(self, sock: socket.socket, owner: Readable) -> None:
        """Read `sock` from now on."""
        if self._epoll:
            self._owners[sock.fileno()] = owner
            self._epoll.register(sock, select.EPOLLIN)
        else:
            self._loop.add_reader(sock, lambda: owner.read(Moment()))

    def remove(self, sock: socket.socket) -> None:
        """Do not read it any more; before it is closed."""
        if self._epoll:
            del self._owners[sock.fileno()]
            self._epoll.unregister(sock)
        else:
            self._loop.remove_reader(sock)

    def close(self) -> None:
        """Nothing is read any more."""
        if self._timer:
            self._timer.cancel()
        if self._epoll:
            self._loop.remove_reader(self._epoll)
            self._epoll.close()

    def _wake(self) -> None:
        """Something has come: read it, or see to it that it is read soon."""
        if self._wait_s:
            assert self._epoll is not None
            self._loop.remove_reader(self._epoll)
            self._timer = self._loop.call_later(self._wait_s, self._look)
        else:
            self._look()

    def _look(self) -> None:
        """Read every socket that has something."""
        assert self._epoll is not None
        if self._timer:
            self._timer = None
            self._loop.add_reader(self._epoll, self._wake)
        ready = self._epoll.poll(0)
        moment = Moment()
        owners = self._owners
        for number, _ in ready:
            owner = owners.get(number)  # none when one before it was the reason to close it
            if owner:
                owner.read(moment)
        if len(self.gaps_s) >= _SAMPLE:
            self._decide(moment.now_s)

    def _decide(self, now_s: float) -> None:
        """How long what arrives may lie."""
        count = len(self.gaps_s)
        self.gaps_s.sort()
        gap_s = self.gaps_s[count // 10]
        self.gaps_s.clear()
        wait_s = min(_LONGEST_WAIT_S, _OF_GAP * gap_s, _OF_REQUEST * self.last_took_s)
        worth_it = wait_s >= _SHORTEST_WAIT_S and wait_s * count >= _WORTH * (now_s - self._decided_s)
        self._wait_s = wait_s if worth_it else 0.0
        self._decided_s = now_s
