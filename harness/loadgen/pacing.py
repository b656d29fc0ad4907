"""When requests are sent: the closed loop, and a check of how punctual this process is."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self

import numpy as np


class Dispatch(NamedTuple):
    """One request's turn."""

    number: int  # index into the shared list of prompts
    worker: int
    scheduled_s: float  # perf_counter seconds; when the pacing wanted it sent


async def closed_loop(
    send: Callable[[Dispatch], Awaitable[float]],
    *,
    start_s: float,
    count: int,
    concurrency: int,
    stagger_s: float = 0.0,
) -> None:
    """`concurrency` workers take requests 0 .. count-1 in order; each sends its next when its last ended.

    send: carries one request out and returns when it ended (perf_counter seconds), failed or not;
    start_s: when the first is due (perf_counter seconds); stagger_s: seconds between the workers' first
    requests. Returns once all have ended. An exception in `send`, or cancellation, ends every worker.
    """
    turns = iter(range(count))

    async def work(worker: int) -> None:
        scheduled_s = start_s + worker * stagger_s
        wait_s = scheduled_s - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        for number in turns:
            scheduled_s = await send(Dispatch(number, worker, scheduled_s))

    async with asyncio.TaskGroup() as workers:
        for worker in range(min(concurrency, count)):
            workers.create_task(work(worker))


class LagMonitor:
    """Measures how late this event loop runs, as an async context manager.

    It should wake every `interval_s`. Every wake-up counts with its own lateness, those missed
    during a stall included: a loop that stands still for a second is late a hundred times, not once.
    """

    def __init__(self, interval_s: float = 0.01) -> None:
        self._interval_s = interval_s
        self._lags_s = array("d")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        due_s = time.perf_counter() + self._interval_s
        while True:
            await asyncio.sleep(due_s - time.perf_counter())
            now_s = time.perf_counter()
            missed = max(math.ceil((now_s - due_s) / self._interval_s), 1)
            self._lags_s.extend(max(now_s - due_s - i * self._interval_s, 0.0) for i in range(missed))
            due_s += missed * self._interval_s

    @property
    def p99_ms(self) -> float | None:
        """The 99th percentile of the lateness in milliseconds; None when it never woke."""
        return float(np.percentile(self._lags_s, 99)) * 1e3 if self._lags_s else None
