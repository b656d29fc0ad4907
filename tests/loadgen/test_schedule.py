"""Arrival times: their moments by the textbook, traces as they are, time as a bound."""

from __future__ import annotations

import numpy as np
import pytest

from harness.loadgen.schedule import due_times
from harness.schema import ArrivalKind, LoadConfig, LoadMode


def due(arrivals, count=4000, trace=None, seed=0, **settings):
    load = LoadConfig(mode=LoadMode.open, arrivals=ArrivalKind(arrivals), **settings)
    return np.array(due_times(load, count, np.random.default_rng(seed), trace))


@pytest.mark.parametrize(
    ("arrivals", "settings", "variation"),
    [
        ("constant", {}, 0.0),
        ("poisson", {}, 1.0),
        ("gamma", {"burstiness": 0.25}, 2.0),
        ("gamma", {"burstiness": 4.0}, 0.5),
        ("gamma", {"burstiness": 1.0}, 1.0),
    ],
)
def test_gaps_have_the_mean_and_the_variation_of_their_law(arrivals, settings, variation):
    times = due(arrivals, request_rate=20.0, **settings)
    gaps = np.diff(times)
    assert times[0] == 0
    assert len(times) == 4000
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.05, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.15, abs=1e-9)


def test_a_poisson_process_has_counts_whose_variance_is_their_mean():
    counts = np.bincount(due("poisson", 20_000, request_rate=5.0).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.1)


def test_the_same_seed_gives_the_same_times_and_another_others():
    assert (due("poisson", request_rate=1.0) == due("poisson", request_rate=1.0)).all()
    assert (due("poisson", request_rate=1.0) != due("poisson", request_rate=1.0, seed=1))[1:].all()


def test_a_trace_is_replayed_in_its_own_time():
    assert due("trace", 3, [2.0, 2.5, 7.0, 9.0]).tolist() == [0, 0.5, 5]
    assert due("trace", 4, [2.0, 2.5, 7.0, 9.0], slowdown=0.1).tolist() == pytest.approx([0, 0.05, 0.5, 0.7])
    with pytest.raises(ValueError, match="arrival times"):
        due("trace", 3)


def test_time_is_a_bound():
    assert due("constant", 100, request_rate=10.0, max_seconds=1.0).tolist() == pytest.approx(np.arange(11) / 10)
    assert due("trace", 4, [0.0, 1.0, 2.0, 3.0], slowdown=2.0, max_seconds=4.0).tolist() == [0, 2, 4]


@pytest.mark.parametrize("count", [0, 1])
def test_few_requests(count):
    assert due("poisson", count, request_rate=1.0).tolist() == [0.0] * count
    assert due("trace", count, [3.0]).tolist() == [0.0] * count
