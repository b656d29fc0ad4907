"""When the bytes of a socket came in, by the kernel's clock (SO_TIMESTAMPNS, socket(7)).

The kernel stamps a packet when it arrives, so the time holds however late the process gets to read it. Where it
gives no stamp (another system than Linux), the time of the read stands in.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

_SO_TIMESTAMPNS = 35 if sys.platform == "linux" else None  # Python has no name for it
_TIMESPEC = struct.Struct("@ll")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


def ask_for_stamps(sock: socket.socket) -> None:
    """From now on `sock.recvmsg` brings stamps; so do the sockets that a listening one accepts."""
    if _SO_TIMESTAMPNS is not None:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def arrival_s(ancillary: list[tuple[int, int, bytes]], earliest_s: float) -> float:
    """When the last of the bytes just read came in: `time.perf_counter()` seconds, between `earliest_s` and now."""
    now_s = time.perf_counter()
    if not ancillary:
        return now_s
    seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
    age_s = time.time() - seconds - nanoseconds * 1e-9  # an age, because the kernel's clock may be set
    return min(now_s, max(now_s - age_s, earliest_s))
