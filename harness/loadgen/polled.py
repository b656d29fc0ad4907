"""Reads sockets from the event loop, which waits for one epoll that has them all: where `native` cannot."""

from __future__ import annotations

import asyncio
import select
import socket
from itertools import accumulate
from typing import Any

from harness.loadgen.alike import USUAL_END
from harness.loadgen.gather import FEW, MANY, Gatherer, Owner, Source
from harness.loadgen.stamps import ANCILLARY_BYTES, STAMPED, Moment, arrivals_s

_READ, _MORE = 1 << 12, 1 << 16  # bytes of one read: usually, and where there were as many


class PolledGatherer(Gatherer):
    """Reads on the event loop's thread."""

    def __init__(self, why: str) -> None:
        """why: it is not the native one."""
        super().__init__()
        self._why = why
        self._loop = asyncio.get_running_loop()
        self._sources: dict[int, _PolledSource] = {}
        self._epoll = select.epoll() if STAMPED else None
        self._timer: asyncio.Handle | None = None  # of the next look, None when the loop waits for the epoll
        if self._epoll:
            self._loop.add_reader(self._epoll, self._wake)

    @property
    def kind(self) -> str:
        return f"python ({self._why})"

    def add(self, sock: socket.socket, owner: Owner) -> Source:
        source = _PolledSource(self, sock, owner)
        if self._epoll:
            self._sources[sock.fileno()] = source
            self._epoll.register(sock, select.EPOLLIN)
        else:
            self._loop.add_reader(sock, lambda: source.read(Moment()))
        return source

    def remove(self, sock: socket.socket) -> None:
        """For its source."""
        if self._epoll:
            del self._sources[sock.fileno()]
            self._epoll.unregister(sock)
        else:
            self._loop.remove_reader(sock)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._epoll:
            self._loop.remove_reader(self._epoll)
            self._epoll.close()

    def _wake(self) -> None:
        """Something has come: read it, or see to it that it is read soon."""
        if self.wait_s:
            assert self._epoll is not None
            self._loop.remove_reader(self._epoll)
            self._timer = self._loop.call_later(self.wait_s, self._look)
        else:
            self._look()

    def _look(self) -> None:
        """Read every socket that has something."""
        assert self._epoll is not None
        ready = self._epoll.poll(0)
        if self._timer:  # the loop does not wait for the epoll: go on so while something comes
            self._timer = self._loop.call_later(self.wait_s, self._look) if ready and self.wait_s else None
            if not self._timer:
                self._loop.add_reader(self._epoll, self._wake)
        moment = Moment()
        sources = self._sources
        for number, _ in ready:
            source = sources.get(number)  # none when one before it was the reason to close it
            if source:
                source.read(moment)
        self.decide()


class _PolledSource(Source):
    def __init__(self, gatherer: PolledGatherer, sock: socket.socket, owner: Owner) -> None:
        self._gatherer, self._sock, self._owner = gatherer, sock, owner
        self._receive = sock.recvmsg
        # Reads lie here until there is a reason to tell of them: of each its bytes, the kernel's stamp, the moment.
        self._lying: list[Any] = []
        self._at_once = FEW + sock.fileno() % FEW  # streams in step must not all settle at once
        self._floor_s = 0.0  # nothing arrives before this
        self._quiet = self._stopped = False

    def expect(self, earliest_s: float) -> None:
        self._floor_s, self._quiet = earliest_s, False

    def quiet(self, on: bool) -> None:
        self._quiet = on

    def look(self) -> None:
        self.read(Moment())
        self._settle()

    def stop(self) -> None:
        self._stopped = True
        self._gatherer.remove(self._sock)

    def read(self, moment: Moment, most: int = _READ) -> None:
        """Read what has arrived."""
        if self._stopped:
            return
        try:
            data, ancillary, _, _ = self._receive(most, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._settle()
            self._owner.ended(error)
            return
        if self._quiet and ancillary and data.endswith(USUAL_END):
            lying = self._lying
            lying += (data, ancillary[0][2], moment)
            if len(lying) >= 3 * self._at_once:
                self._settle()
            return
        self._settle()
        if not data:
            self._owner.ended(None)
            return
        self._floor_s = moment.arrival_s(ancillary, self._floor_s)
        self._owner.arrived([self._floor_s], data, [len(data)])
        if len(data) == most == _READ:
            self.read(moment, _MORE)

    def _settle(self) -> None:
        """Tell of what was left lying."""
        lying = self._lying
        if not lying:
            return
        reads, stamps, moments = lying[::3], lying[1::3], lying[2::3]
        self._lying = []
        self._at_once = min(2 * self._at_once, MANY + self._sock.fileno() % FEW)
        times_s = arrivals_s(moments, stamps, self._floor_s)
        self._floor_s = times_s[-1]
        self._owner.arrived(times_s, b"".join(reads), list(accumulate(map(len, reads))))
