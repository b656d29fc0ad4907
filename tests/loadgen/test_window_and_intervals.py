"""Steady state, goodput, failures as infinite, confidence intervals: by hand, by brute force, by the normal law."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.bootstrap import intervals, least_for_a_quantile, ratio_interval
from harness.loadgen.metrics import Rules, measure
from harness.loadgen.window import in_flight, steady_window
from harness.records import RequestRecord


def record(scheduled, first, last, tokens=3, *, worker=0, error=None, end=None, sent=None):
    times = [first + (last - first) * i / (tokens - 1) for i in range(tokens)] if tokens > 1 else [first]
    return RequestRecord(
        request_id="r",
        worker=worker,
        prompt_sha="s",
        input_len=5,
        output_len=tokens,
        scheduled_s=scheduled,
        sent_s=scheduled if sent is None else sent,
        chunk_times_s=times,
        chunk_tokens=[1] * tokens,
        end_s=last if end is None else end,
        error=error,
    )


# two workers, the second a second later, three requests each of 2 s; the first worker is done at 6, the second at 7
LOOP = [record(2.0 * i + w, 2.0 * i + w + 0.5, 2.0 * i + w + 2.0, worker=w) for w in (0, 1) for i in range(3)]


def test_the_window_is_where_all_workers_are_busy():
    assert steady_window(LOOP, 2) == (1.0, 6.0)
    m = measure(LOOP, Rules(concurrency=2))
    assert (m["steady_start_s"], m["steady_duration_s"], m["steady_requests"]) == (1.0, 5.0, 5)
    # tokens at 0.5 1.25 2 | 2.5 3.25 4 | 4.5 5.25 6 and a second later: 8 and 7 of them in (1, 6]
    assert m["steady_output_throughput"] == pytest.approx(15 / 5)
    assert m["steady_mean_ttft_ms"] == pytest.approx(500)
    assert m["mean_concurrency"] == pytest.approx(12 / 7)
    assert m["peak_concurrency"] == 2


def test_a_pause_between_a_workers_requests_does_not_end_the_window():
    """The client takes a moment to notice that a response has ended: with many workers one always does."""
    paused = [
        record(2.001 * i + w, 2.001 * i + w + 0.5, 2.001 * i + w + 2.0, worker=w) for w in (0, 1) for i in range(3)
    ]
    assert steady_window(paused, 2) == (1.0, pytest.approx(6.002))


def test_no_window():
    assert steady_window(LOOP, 3) is None
    assert steady_window([], 1) is None
    m = measure(LOOP, Rules(concurrency=3))
    assert all(m[name] is None for name in m if name.startswith("steady_"))


def test_the_open_loops_window_is_from_the_first_end_to_the_last_arrival():
    sample = [record(i * 1.0, i + 0.2, i + 1.5) for i in range(10)]
    assert steady_window(sample, None) == (1.5, 9.0)
    assert measure(sample)["offered_request_rate"] == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10)), min_size=1, max_size=15))
def test_in_flight_is_what_counting_gives(spans):
    sample = [record(float(a), a + 0.5, float(a + n)) for a, n in spans]
    times, counts = in_flight(sample)
    assert counts[-1] == 0
    for moment in np.arange(0.25, 31):
        at = np.searchsorted(times, moment, side="right") - 1
        assert (counts[at] if at >= 0 else 0) == sum(a <= moment < a + n for a, n in spans)


def test_goodput_is_over_all_sent():
    sample = [record(0, 0.1, 0.3), record(0, 0.3, 0.5), record(0, 0.1, 0.9), record(0, 0.1, 0.2, error="connect")]
    m = measure(sample, Rules(slo_ttft_ms=200, slo_tpot_ms=150))
    assert m["goodput"] == pytest.approx(1 / 4)  # the second's TTFT, the third's TPOT (400 ms), the fourth failed
    assert m["request_goodput"] == pytest.approx(1 / 0.9)
    assert measure(sample, Rules(slo_e2el_ms=600))["goodput"] == pytest.approx(2 / 4)
    assert measure(sample)["goodput"] is None
    assert measure([record(0, 0.1, 0.1, tokens=1)], Rules(slo_tpot_ms=1))["goodput"] == 1


@given(st.lists(st.floats(0.001, 10), max_size=12), st.integers(0, 5))
def test_failures_count_as_infinite(ttfts, failed):
    sample = [record(0, t, t + 1) for t in ttfts] + [record(0, 1, 2, error="http_5xx") for _ in range(failed)]
    m = measure(sample)
    everything = sorted(t * 1e3 for t in ttfts) + [math.inf] * failed
    for name, q in {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}.items():
        found = m[f"{name}_ttft_ms_with_failures"]
        if not everything:
            assert found is None
            continue
        rank = q * (len(everything) - 1)
        low, high = everything[math.floor(rank)], everything[math.ceil(rank)]
        if math.isinf(high):
            assert found is None
        else:
            assert found == pytest.approx(low + (high - low) * (rank - math.floor(rank)))
    if not failed:
        assert m["p99_ttft_ms_with_failures"] == (pytest.approx(m["p99_ttft_ms"]) if ttfts else None)


def test_per_user_and_per_device():
    m = measure([record(0, 1, 2, tokens=11)], Rules(devices=4))
    assert m["output_throughput_per_user"] == pytest.approx(10)  # 100 ms a token
    assert m["output_throughput_per_device"] == pytest.approx(11 / 2 / 4)


def test_late_dispatches_are_counted():
    sample = [record(0, 1, 2, sent=s) for s in (0.0, 0.005, 0.011, 0.5)]
    m = measure(sample, Rules(late_after_ms=10))
    assert (m["late_dispatches"], m["max_dispatch_lag_ms"]) == (2, pytest.approx(500))
    assert m["mean_dispatch_lag_ms"] == pytest.approx(129)


def test_an_interval_is_that_of_the_normal_law_where_it_holds():
    values = np.random.default_rng(1).normal(100, 15, 600)
    mean, (median, p99) = intervals(values, (0.5, 0.99))
    error = values.std() / math.sqrt(600)
    assert mean == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.25 * error)
    wide = 1.2533 * error  # the median's standard error under the normal law
    assert median[1] - median[0] == pytest.approx(2 * 1.96 * wide, rel=0.4)
    assert p99[0] < np.quantile(values, 0.99) <= p99[1]


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(2)
    inside = sum(low <= 1.0 <= high for low, high in (intervals(rng.exponential(1, 40), ())[0] for _ in range(200)))
    assert 170 <= inside <= 199  # 95% of 200 is 190; the percentile bootstrap is a little narrow at n = 40


def test_a_ratio_of_equal_requests_has_no_width_and_unequal_ones_are_drawn_whole():
    assert ratio_interval(np.full(20, 30.0), np.full(20, 3)) == (10.0, 10.0)
    low, high = ratio_interval(np.array([1.0] * 10 + [1000.0] * 10), np.array([1] * 10 + [100] * 10))
    assert 9 < low < 10010 / 1010 < high < 10


@pytest.mark.parametrize(("share", "least"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368)])
def test_too_few_give_none(share, least):
    assert least_for_a_quantile(share) == least
    assert share**least <= 0.025 < share ** (least - 1)
    values = np.arange(least, dtype=float)
    assert intervals(values, (share,))[1][0] is not None
    assert intervals(values[1:], (share,))[1][0] is None
    assert intervals(np.arange(9.0), ())[0] is None
