"""Several processes drive one point together: prepared, then started at one moment, then merged on one clock.

Knows nothing of how the processes are reached: `harness.cluster` does (Ray), and `harness.loadgen.local` for this
machine alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, NamedTuple, Protocol

from harness.loadgen.point import PointLoad, Seen, split

POLL_S = 0.5
CALL_TIMEOUT_S = 60.0
_HEAD_START_S = 0.25  # for the word to start to reach every process
_PINGS = 8


class Worker(Protocol):
    """A process with a `harness.actors.LoadgenActor` in it."""

    def call(self, method: str, *args: Any) -> Future[Any]:
        """Call a method there; the future gives what it returned, or raises."""
        ...


class Clock(NamedTuple):
    """A process's clock against this one's."""

    ahead_s: float
    uncertainty_s: float


def run_together(
    load: PointLoad,
    workers: Sequence[Worker],
    own_clock: str,
    on_progress: Callable[[int, int, float], None] | None = None,
) -> Seen:
    """Drive one point with as many of `workers` as it has requests in flight.

    own_clock: which machine's clock this process reads (`sysinfo.boot_id`). on_progress: given requests done,
    tokens (about) and seconds, now and then. Raises what the workers' calls raise.
    """
    shares = split(load, len(workers))
    team = workers[: len(shares)]
    together = len(team) > 1
    clocks = [read_clock(worker, own_clock) for worker in team] if together else [Clock(0.0, 0.0)]
    if together:
        _all([worker.call("arm") for worker in team])
    driving = [worker.call("drive", share, together) for worker, share in zip(team, shares, strict=True)]
    if together:
        _start(team, driving, clocks)
    while wait(driving, timeout=POLL_S).not_done:
        if on_progress:
            seen = _all([worker.call("progress") for worker in team])
            on_progress(sum(done for done, _, _ in seen), sum(n for _, n, _ in seen), max(s for _, _, s in seen))
    return Seen(
        load=load,
        driven=[future.result() for future in driving],
        clock_ahead_s=[clock.ahead_s for clock in clocks],
        clock_uncertainty_ms=max(clock.uncertainty_s for clock in clocks) * 1e3 if together else None,
    )


def read_clock(worker: Worker, own_clock: str) -> Clock:
    """The offset of a worker's time.time(), by the quickest of several round trips (as NTP does).

    It lies within half that round trip. Processes of one machine read one clock, and nothing is estimated.
    """
    best = Clock(0.0, float("inf"))
    for _ in range(_PINGS):
        sent_s = time.time()
        machine, there_s = worker.call("clock").result(CALL_TIMEOUT_S)
        came_s = time.time()
        if machine == own_clock:
            return Clock(0.0, 0.0)
        if (came_s - sent_s) / 2 < best.uncertainty_s:
            best = Clock(there_s - (sent_s + came_s) / 2, (came_s - sent_s) / 2)
    return best


def _start(team: Sequence[Worker], driving: Sequence[Future[Any]], clocks: Sequence[Clock]) -> None:
    """Give the word once all are prepared; where one has ended before that, tell the others to give up."""
    pending: set[Future[Any]] = {worker.call("prepared") for worker in team}
    while pending and not any(future.done() for future in driving):
        pending = wait([*pending, *driving], timeout=POLL_S, return_when=FIRST_COMPLETED).not_done - set(driving)
    at_s = None if any(future.done() for future in driving) else time.time() + _HEAD_START_S
    _all(
        [
            worker.call("begin", None if at_s is None else at_s + clock.ahead_s)
            for worker, clock in zip(team, clocks, strict=True)
        ]
    )


def _all(futures: Sequence[Future[Any]]) -> list[Any]:
    return [future.result(CALL_TIMEOUT_S) for future in futures]
