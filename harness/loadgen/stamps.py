"""When the bytes of a socket came in, by the kernel's clock (SO_TIMESTAMPNS, socket(7)).

The kernel stamps a packet when it arrives, so the time holds however late the process gets to read it. Where it
gives no stamp (another system than Linux, or the moment it takes to begin after the machine's first socket has asked),
the time of the read stands in.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence

import numpy as np

STAMPED = sys.platform == "linux"
_SO_TIMESTAMPNS = 35  # Linux's; Python has no name for it
_TIMESPEC = struct.Struct("@ll")
_unpack = _TIMESPEC.unpack
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)

Ancillary = list[tuple[int, int, bytes]]  # as `socket.recvmsg` gives it


def ask_for_stamps(sock: socket.socket) -> None:
    """From now on `sock.recvmsg` brings stamps; so do the sockets that a listening one accepts."""
    if STAMPED:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


class Moment:
    """Both clocks read at one time, for all that is read off sockets right after it."""

    __slots__ = ("ahead_s", "now_s")

    def __init__(self) -> None:
        self.now_s = time.perf_counter()
        self.ahead_s = time.time() - self.now_s  # of the kernel's clock, which may be set at any time

    def arrival_s(self, ancillary: Ancillary, earliest_s: float) -> float:
        """When the last of the bytes just read came in: `time.perf_counter()` seconds, from `earliest_s` to now."""
        if ancillary:
            seconds, nanoseconds = _unpack(ancillary[0][2])
            time_s = seconds - self.ahead_s + nanoseconds * 1e-9
            if earliest_s <= time_s <= self.now_s:
                return time_s
        return arrival_s(ancillary, earliest_s)  # it came after this moment, or the clock was set


def arrivals_s(moments: Sequence[Moment], stamps: Sequence[bytes], earliest_s: float) -> list[float]:
    """`Moment.arrival_s` of many reads of one socket, one after the other; `stamps` are the kernel's own bytes."""
    seconds, nanoseconds = np.frombuffer(b"".join(stamps), dtype=np.int_).reshape(-1, 2).T
    times = seconds - np.array([moment.ahead_s for moment in moments]) + nanoseconds * 1e-9
    latest = np.array([moment.now_s for moment in moments])
    times_s: list[float] = times.tolist()
    if times_s[0] >= earliest_s and (np.diff(times) >= 0).all() and (times <= latest).all():
        return times_s
    for place, (moment, stamp) in enumerate(zip(moments, stamps, strict=True)):
        times_s[place] = earliest_s = moment.arrival_s([(0, 0, stamp)], earliest_s)
    return times_s


def arrival_s(ancillary: Ancillary, earliest_s: float) -> float:
    """`Moment.arrival_s` of this very moment."""
    now_s = time.perf_counter()
    if not ancillary:
        return now_s
    seconds, nanoseconds = _unpack(ancillary[0][2])
    age_s = time.time() - seconds - nanoseconds * 1e-9  # an age, because the kernel's clock may be set
    return min(now_s, max(now_s - age_s, earliest_s))
