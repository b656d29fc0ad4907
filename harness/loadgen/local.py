"""One point driven by several processes of this machine, without Ray: for `python -m harness.loadgen --processes`."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from harness.loadgen.loop import run_on_own_loop
from harness.loadgen.point import Driven, PointLoad, PointResult, conclude, split
from harness.loadgen.run import drive

_HEAD_START_S = 0.1  # for every process to hear of the start
_shared: dict[str, Any] = {}  # of a child process: what its parent gave all of them


def run_local(load: PointLoad, processes: int) -> PointResult:
    """Drive a point with so many processes, which begin at one moment. Raises BrokenProcessPool when one dies."""
    shares = split(load, processes)
    context = multiprocessing.get_context("spawn")
    barrier, start = context.Barrier(len(shares)), context.Value("d", 0.0)
    with ProcessPoolExecutor(len(shares), context, initializer=_receive, initargs=(barrier, start)) as pool:
        return conclude(load, list(pool.map(_drive, shares)))


def _receive(barrier: Any, start: Any) -> None:
    _shared.update(barrier=barrier, start=start)


def _drive(share: PointLoad) -> Driven:
    try:
        return run_on_own_loop(drive(share, begin=_begin))
    finally:
        if not _shared.get("begun"):
            _shared["barrier"].abort()  # the others must not wait for one that has given up


async def _begin() -> float | None:
    """When all are here: the moment to start, None where one will not come."""
    try:
        await asyncio.to_thread(_shared["barrier"].wait)
        with _shared["start"].get_lock():  # the first one says when
            _shared["start"].value = _shared["start"].value or time.time() + _HEAD_START_S
    except threading.BrokenBarrierError:
        return None
    _shared["begun"] = True
    return float(_shared["start"].value)
