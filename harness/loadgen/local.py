"""One point driven by several processes of this machine, without Ray: for `python -m harness.loadgen --processes`."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from harness.loadgen.loop import run_on_own_loop
from harness.loadgen.point import Driven, PointLoad, PointResult, conclude, split
from harness.loadgen.run import drive
from harness.loadgen.stopping import SIGNALS, Stop

_HEAD_START_S = 0.1  # for every process to hear of the start
_shared: dict[str, Any] = {}  # of a child process: what its parent gave all of them


def run_local(load: PointLoad, processes: int, stop: Stop) -> PointResult:
    """Drive a point with so many processes, which begin at one moment. Raises BrokenProcessPool when one dies."""
    shares = split(load, processes)
    context = multiprocessing.get_context("spawn")
    given = context.Barrier(len(shares)), context.Value("d", 0.0), context.Event()
    with (
        ProcessPoolExecutor(len(shares), context, initializer=_receive, initargs=given) as pool,
        stop.heard_by(given[-1].set),
    ):
        return conclude(load, list(pool.map(_drive, shares)))


def _receive(barrier: Any, start: Any, stopping: Any) -> None:
    for number in SIGNALS:  # a terminal's Ctrl-C reaches all of us: the parent decides
        signal.signal(number, signal.SIG_IGN)
    _shared.update(barrier=barrier, start=start, stop=Stop())
    threading.Thread(target=_hear, args=(stopping, _shared["stop"]), daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _hear(stopping: Any, stop: Stop) -> None:
    stopping.wait()
    stop.say()


def _end_with_parent() -> None:
    """End this process when its parent has ended, however that came about: nobody is left to take the result."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _drive(share: PointLoad) -> Driven:
    try:
        return run_on_own_loop(drive(share, begin=_begin, stop=_shared["stop"]))
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
