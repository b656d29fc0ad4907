"""Lets many requests go at one moment, each prepared before it.

Where 256 are due at once, 40 us of preparation for each would have the last one sent 10 ms late.
"""

from __future__ import annotations

import asyncio
import time

_TIMER_S = 0.001  # asyncio's timers ring up to so much late


class Gate:
    """`until` returns at its moment: at once for all that wait for the same one."""

    def __init__(self) -> None:
        self._waiting: dict[float, asyncio.Event] = {}

    async def until(self, at_s: float) -> None:
        """at_s: `time.perf_counter()` seconds. Where it has passed, nothing else runs before this returns."""
        left_s = at_s - time.perf_counter()
        if left_s <= 0:
            return
        event = self._waiting.get(at_s)
        if event is None:
            event = self._waiting[at_s] = asyncio.Event()
            asyncio.get_running_loop().call_later(left_s - _TIMER_S, self._open, at_s)
        await event.wait()

    def _open(self, at_s: float) -> None:
        while time.perf_counter() < at_s:
            pass
        self._waiting.pop(at_s).set()
