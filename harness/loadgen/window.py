"""Requests in flight over time, and the steady-state window of a point. From timestamps alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.records import RequestRecord


def in_flight(requests: Sequence[RequestRecord]) -> tuple[np.ndarray, np.ndarray]:
    """(times, counts): from `times[i]` on, until the next, `counts[i]` requests are scheduled and not ended.

    A request that never ended is left out. Where one ends at the very moment another is scheduled, as in a
    closed loop, the count dips and comes back at that moment.
    """
    ended = [request for request in requests if request.end_s is not None]
    starts = np.array([request.scheduled_s for request in ended])
    ends = np.array([request.end_s for request in ended], dtype=np.float64)
    times = np.concatenate([ends, starts])
    steps = np.concatenate([-np.ones(len(ends), np.int64), np.ones(len(starts), np.int64)])
    order = np.lexsort((steps, times))  # ends before starts
    return times[order], np.cumsum(steps[order])


def steady_window(requests: Sequence[RequestRecord], concurrency: int | None) -> tuple[float, float] | None:
    """(start, end) of the steady state in seconds, None where there is none.

    Closed loop of `concurrency` workers: from the first to the last moment at which all of them have a
    request in flight, so neither a staggered start nor the drain at the end is in it. Open loop (None): from
    the first response's end to the last arrival, since full concurrency means nothing there.
    """
    ends = [request.end_s for request in requests if request.end_s is not None]
    if not ends:
        return None
    if concurrency is None:
        start_s, end_s = min(ends), max(request.scheduled_s for request in requests)
    else:
        times, counts = in_flight(requests)
        full = np.flatnonzero(counts >= concurrency)
        if full.size == 0:
            return None
        start_s, end_s = float(times[full[0]]), float(times[full[-1] + 1])  # the last count is 0: never full
    return (start_s, end_s) if end_s > start_s else None
