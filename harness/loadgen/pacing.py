"""When requests are sent: the closed loop's workers, and the open loop's clock."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple


class Dispatch(NamedTuple):
    """One request's turn."""

    number: int  # index into the shared list of prompts
    worker: int
    scheduled_s: float  # perf_counter seconds; when the pacing wanted it sent


AHEAD_S = 0.05

Send = Callable[[Dispatch], Awaitable[float]]
"""Carries one request out and returns when it ended (perf_counter seconds), failed or not.

A worker's first one is handed over up to `AHEAD_S` before it is due, so that it can be prepared.
"""


async def closed_loop(
    send: Send,
    *,
    start_s: float,
    count: int,
    concurrency: int,
    stagger_s: float = 0.0,
    first_worker: int = 0,
    max_seconds: float | None = None,
) -> None:
    """`concurrency` workers take requests 0 .. count-1 in order; each sends its next when its last ended.

    start_s: when the first is due (perf_counter seconds); stagger_s: seconds between the workers' first
    requests, of which this process has those from `first_worker` on; max_seconds: no request that is due
    later than this after `start_s` is sent. Returns once all have ended. An exception in `send`, or
    cancellation, ends every worker.
    """
    turns = iter(range(count))
    until_s = math.inf if max_seconds is None else start_s + max_seconds

    async def work(worker: int) -> None:
        scheduled_s = start_s + worker * stagger_s
        await _sleep_until(scheduled_s - AHEAD_S)
        while scheduled_s <= until_s and (number := next(turns, None)) is not None:
            scheduled_s = await send(Dispatch(number, worker, scheduled_s))

    async with asyncio.TaskGroup() as workers:
        for worker in range(min(concurrency, count)):
            workers.create_task(work(first_worker + worker))


async def open_loop(send: Send, *, start_s: float, due_s: Sequence[float], limit: int, worker: int = 0) -> None:
    """Request i is sent `due_s[i]` (rising) after `start_s`, whatever has become of the earlier ones.

    At most `limit` are in flight: one that is due beyond them waits for its turn, and its scheduled time stays
    when it was due. worker: what the records call this process. Returns once all have ended. An exception in
    `send`, or cancellation, ends every request.
    """
    free = asyncio.Semaphore(limit)

    async def carry(turn: Dispatch) -> None:
        try:
            await send(turn)
        finally:
            free.release()

    async with asyncio.TaskGroup() as requests:
        for number, after_s in enumerate(due_s):
            await _sleep_until(start_s + after_s)
            await free.acquire()
            requests.create_task(carry(Dispatch(number, worker, start_s + after_s)))


async def _sleep_until(time_s: float) -> None:
    while (wait_s := time_s - time.perf_counter()) > 0:  # again where a timer rang early
        await asyncio.sleep(wait_s)
