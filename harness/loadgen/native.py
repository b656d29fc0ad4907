"""Reads sockets on a thread that needs no interpreter (csrc/reader.cpp), and brings many reads here at once.

It is as `polled`, for a third of the CPU time. That one remains for TLS, whose bytes mean nothing to a thread that has
no key, and for machines without a compiler.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import socket
from pathlib import Path

from hisparse_kernels.build import BuildUnavailable, load_alone

from harness.loadgen.gather import FEW, MANY, Gatherer, Owner, Source
from harness.loadgen.polled import PolledGatherer
from harness.loadgen.stamps import STAMPED

_SOURCE = Path(__file__).parent / "csrc" / "reader.cpp"
_MOST = 256  # streams taken from between two turns of the reader's lock


def open_gatherer(*, plain: bool) -> Gatherer:
    """What reads here. plain: what comes is not encrypted."""
    if not plain:
        return PolledGatherer("TLS")
    found = _library()
    return PolledGatherer(found) if isinstance(found, str) else NativeGatherer(found)


def reader_here() -> str:
    """What reads plain sockets in this process: "native", or "python" and why."""
    found = _library()
    return f"python ({found})" if isinstance(found, str) else "native"


class _Taken(ctypes.Structure):
    """Reads of one stream, in memory that is the reader's: until the next are taken."""

    _fields_ = [
        ("wire", ctypes.c_void_p),
        ("ends", ctypes.POINTER(ctypes.c_int64)),
        ("times_s", ctypes.POINTER(ctypes.c_double)),
        ("count", ctypes.c_int64),
        ("wire_bytes", ctypes.c_int64),
        ("state", ctypes.c_int64),  # 0: more may come, -1: the other side closed it, else an errno
    ]


_POINTER, _INT, _LONG, _DOUBLE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_double
_FUNCTIONS = {
    "reader_new": (_POINTER,),
    "reader_delete": (None, _POINTER),
    "reader_wake_fd": (_INT, _POINTER),
    "reader_wait": (None, _POINTER, _DOUBLE),
    "reader_add": (_POINTER, _POINTER, _INT),
    "reader_remove": (None, _POINTER, _POINTER),
    "reader_ready": (_LONG, _POINTER, _POINTER, _LONG),
    "reader_take": (None, _POINTER, _POINTER, _INT, ctypes.POINTER(_Taken)),
    "stream_expect": (None, _POINTER, _DOUBLE),
    "stream_quiet": (None, _POINTER, _INT, _LONG),
}


@functools.cache
def _library() -> ctypes.PyDLL | str:
    """csrc/reader.cpp, or why there is none."""
    if not STAMPED:
        return "no epoll and no kernel's times on this system"
    try:
        library = load_alone("loadgen_reader", _SOURCE)
    except BuildUnavailable as error:
        return str(error)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class NativeGatherer(Gatherer):
    """Reads on a thread of its own."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._library = library
        self._reader = library.reader_new()
        self._wake_fd: int = library.reader_wake_fd(self._reader)
        self._sources: dict[int, _NativeSource] = {}
        self._ready = (ctypes.c_void_p * _MOST)()
        self._loop.add_reader(self._wake_fd, self._wake)

    @property
    def kind(self) -> str:
        return reader_here()

    def add(self, sock: socket.socket, owner: Owner) -> Source:
        stream = self._library.reader_add(self._reader, sock.fileno())
        if stream is None:
            raise OSError("the kernel watches no more sockets (fs.epoll.max_user_watches)")
        source = self._sources[stream] = _NativeSource(self, stream, owner, sock.fileno())
        return source

    def close(self) -> None:
        self._loop.remove_reader(self._wake_fd)
        self._library.reader_delete(self._reader)

    def take(self, stream: int, look: bool) -> _Taken:
        """For its source."""
        taken = _Taken()
        self._library.reader_take(self._reader, stream, look, ctypes.byref(taken))
        return taken

    def remove(self, stream: int) -> None:
        """For its source."""
        del self._sources[stream]
        self._library.reader_remove(self._reader, stream)

    def expect(self, stream: int, earliest_s: float) -> None:
        """For its source."""
        self._library.stream_expect(stream, earliest_s)

    def quiet(self, stream: int, on: bool, at_once: int) -> None:
        """For its source."""
        self._library.stream_quiet(stream, on, at_once)

    def _wake(self) -> None:
        """Some streams have something that cannot wait."""
        count = self._library.reader_ready(self._reader, self._ready, _MOST)
        for stream in self._ready[:count]:
            source = self._sources.get(stream or 0)  # none when one before it was the reason to close it
            if source:
                source.tell()
        if self.decide():
            self._library.reader_wait(self._reader, self.wait_s)


class _NativeSource(Source):
    def __init__(self, gatherer: NativeGatherer, stream: int, owner: Owner, number: int) -> None:
        self._gatherer, self._stream, self._owner = gatherer, stream, owner
        self._spread = number * 37 % MANY
        self._at_once = FEW + self._spread % FEW
        self._quiet = False

    def expect(self, earliest_s: float) -> None:
        self._quiet = False
        self._gatherer.expect(self._stream, earliest_s)

    def quiet(self, on: bool) -> None:
        if on or self._quiet:
            self._quiet = on
            self._gatherer.quiet(self._stream, on, self._at_once)

    def look(self) -> None:
        self.tell(look=True)

    def stop(self) -> None:
        self._gatherer.remove(self._stream)

    def tell(self, look: bool = False) -> None:
        """Bring what there is."""
        taken = self._gatherer.take(self._stream, look)
        state, count = taken.state, taken.count
        if count:
            wire = ctypes.string_at(taken.wire, taken.wire_bytes)
            if count >= self._at_once:
                self._at_once = min(2 * self._at_once, MANY + self._spread)
            self._owner.arrived(taken.times_s[:count], wire, taken.ends[:count])
        if state:
            self._owner.ended(None if state < 0 else OSError(state, os.strerror(state)))
