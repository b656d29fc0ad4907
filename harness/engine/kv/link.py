"""The host link of a CPU platform: a memory copy, or one that takes as long as a given link would.

One link carries all lanes: a transfer occupies it for bytes / bandwidth, one after the other in the order of
submission, and arrives a latency later. Nothing is slowed down but who waits for an arrival, and that by sleeping, so
that other threads compute meanwhile.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time

from harness.schema import LinkConfig

_PR_SET_TIMERSLACK = 29  # Linux, prctl(2): how late a sleeping thread may be woken, 50 us unless set
_SLACK_NS = 1000


class Link:
    """When transfers arrive. `reserve` is called from one thread."""

    def __init__(self, config: LinkConfig):
        self._bandwidth = None if config.bandwidth is None else float(config.bandwidth)
        self._latency = config.latency_us * 1e-6
        self._free = 0.0  # when the last transfer submitted so far will have left the link
        self._sharp = threading.local()

    def reserve(self, num_bytes: int) -> float:
        """Submit a transfer; when it arrives, on `time.perf_counter`'s clock. 0 where the link is a memory copy."""
        if self._bandwidth is None:
            return 0.0
        self._free = max(time.perf_counter(), self._free) + num_bytes / self._bandwidth
        return self._free + self._latency

    def sleep_until(self, arrival: float) -> None:
        left = arrival - time.perf_counter()
        if left > 0:
            if not hasattr(self._sharp, "done"):
                _sharpen_sleep()
                self._sharp.done = True
            time.sleep(left)


def _sharpen_sleep() -> None:
    """Wake this thread on time: layers take about a millisecond, and being 50 us late at each would show."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)
