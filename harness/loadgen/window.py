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

    Closed loop of `concurrency` workers: from the moment the last of them has its first request to the moment the
    first of them has none left, so neither a staggered start nor the drain at the end is in it. Open loop (None):
    from the first response's end to the last arrival, since full concurrency means nothing there.
    """
    ended = [request for request in requests if request.end_s is not None]
    if not ended:
        return None
    if concurrency is None:
        start_s, end_s = min(_ends(ended)), max(request.scheduled_s for request in requests)
    else:
        workers: dict[int, list[RequestRecord]] = {}
        for request in ended:
            workers.setdefault(request.worker, []).append(request)
        if len(workers) < concurrency:
            return None
        start_s = max(min(request.scheduled_s for request in mine) for mine in workers.values())
        end_s = min(max(_ends(mine)) for mine in workers.values())
    return (start_s, end_s) if end_s > start_s else None


def _ends(requests: Sequence[RequestRecord]) -> list[float]:
    return [request.end_s for request in requests if request.end_s is not None]
