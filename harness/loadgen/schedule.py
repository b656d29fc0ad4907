"""When the requests of an open loop are due: pure arithmetic, decided before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.schema import ArrivalKind, LoadConfig


def due_times(load: LoadConfig, count: int, rng: np.random.Generator, trace_s: Sequence[float] | None) -> list[float]:
    """Seconds after the start at which `count` requests are due, rising, the first at 0.

    constant: every 1/rate. poisson: independent exponential gaps of mean 1/rate. gamma: gaps of that mean and
    shape `burstiness` (coefficient of variation 1/sqrt(burstiness), as in vLLM's `--burstiness`). trace: the
    workload's own times (`trace_s`), multiplied by `slowdown`. Requests due after `max_seconds` are left out.
    Gaps are drawn, never rescaled: the rate of a short run differs from the one asked for, and is reported.
    """
    if load.arrivals is ArrivalKind.trace:
        if trace_s is None:
            raise ValueError("load.arrivals=trace needs a workload whose requests have arrival times")
        times = (np.asarray(trace_s[:count]) - trace_s[0]) * load.slowdown if count else np.empty(0)
    else:
        assert load.request_rate is not None, "harness.load_rules refuses this"
        gaps = _gaps(load.arrivals, count, load.burstiness, rng) / load.request_rate
        times = np.concatenate([np.zeros(min(count, 1)), np.cumsum(gaps[: max(count - 1, 0)])])
    if load.max_seconds is not None:
        times = times[times <= load.max_seconds]
    return times.tolist()


def _gaps(arrivals: ArrivalKind | None, count: int, burstiness: float, rng: np.random.Generator) -> np.ndarray:
    """Float64 [count] of mean 1."""
    if arrivals is ArrivalKind.constant:
        return np.ones(count)
    if arrivals is ArrivalKind.poisson:
        return rng.exponential(size=count)
    return rng.gamma(burstiness, 1 / burstiness, size=count)
