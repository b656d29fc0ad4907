"""The metric function against hand-computed cases and properties."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.metrics import measure
from harness.records import LATENCY_MEASURES, STATISTICS, TIMESTAMP_MEASURES, RequestRecord


def record(times, tokens, *, scheduled=0.0, end=None, error=None, prompt_tokens=None):
    return RequestRecord(
        request_id="r",
        worker=0,
        prompt_sha="s",
        input_len=10,
        output_len=sum(tokens),
        scheduled_s=scheduled,
        sent_s=scheduled,
        chunk_times_s=list(times),
        chunk_tokens=list(tokens),
        end_s=end if end is not None else (times[-1] if times else scheduled),
        prompt_tokens=prompt_tokens,
        output_tokens=sum(tokens),
        error=error,
    )


def test_names_are_the_client_measures():
    assert set(measure([])) == set(measure([record([0.1, 0.2], [1, 1])])) == set(TIMESTAMP_MEASURES)


def test_hand_computed():
    first = record([1.2, 1.3, 1.5], [1, 1, 2], scheduled=1.0, end=1.8, prompt_tokens=12)
    second = record([3.0, 3.4], [2, 4], scheduled=2.0, end=3.5)
    m = measure([first, second])
    assert m["duration_s"] == pytest.approx(2.5)  # to the end of the last response, not its last token
    assert (m["completed"], m["failed"]) == (2, 0)
    assert (m["total_input_tokens"], m["total_output_tokens"]) == (22, 10)
    assert m["request_throughput"] == pytest.approx(0.8)
    assert m["output_throughput"] == pytest.approx(4.0)
    assert m["total_token_throughput"] == pytest.approx(12.8)
    assert m["mean_ttft_ms"] == pytest.approx(600)
    assert m["mean_e2el_ms"] == pytest.approx((500 + 1400) / 2)
    assert m["mean_tpot_ms"] == pytest.approx((100 + 80) / 2)  # 300 ms / 3 and 400 ms / 5
    assert m["mean_itl_ms"] == pytest.approx((100 + 2 * 100 + 4 * 100) / 7)
    assert m["std_ttft_ms"] == pytest.approx(400)
    assert m["p90_ttft_ms"] == pytest.approx(920)


def test_several_tokens_per_chunk_do_not_stretch_itl():
    m = measure([record([0.2 + 0.04 * i for i in range(8)], [4] * 8)])
    assert [m["mean_itl_ms"], m["p99_itl_ms"]] == pytest.approx([10, 10])


def test_late_usage_and_done_change_no_latency():
    early, late = record([0.1, 0.2], [1, 1], end=0.2), record([0.1, 0.2], [1, 1], end=0.5)
    a, b = measure([early]), measure([late])
    assert {k: a[k] for k in LATENCY_MEASURES} == {k: b[k] for k in LATENCY_MEASURES}


def test_nothing_sent_is_defined():
    m = measure([])
    assert (m["completed"], m["failed"], m["total_output_tokens"]) == (0, 0, 0)
    assert all(m[k] is None for k in ("duration_s", "output_throughput", *LATENCY_MEASURES))


def test_nothing_completed_gives_no_numbers():
    m = measure([record([0.1], [1], end=2.0, error="timeout_idle")])
    assert (m["completed"], m["failed"], m["duration_s"]) == (0, 1, 2.0)
    assert all(m[k] is None for k in ("request_throughput", "output_throughput", *LATENCY_MEASURES))


def test_one_request_has_percentiles_and_no_std():
    m = measure([record([0.5, 0.6], [1, 1])])
    for latency, value in {"ttft": 500, "e2el": 600, "tpot": 100, "itl": 100}.items():
        assert m[f"std_{latency}_ms"] is None
        assert [m[f"{s}_{latency}_ms"] for s in STATISTICS if s != "std"] == pytest.approx([value] * 5)


@pytest.mark.parametrize("tokens", [1, 6])
def test_one_chunk_has_no_time_per_token(tokens):
    m = measure([record([0.5], [tokens])])
    assert m["mean_tpot_ms"] is None
    assert m["mean_itl_ms"] is None
    assert m["mean_ttft_ms"] == m["mean_e2el_ms"] == 500


def test_failures_are_counted_and_lengthen_the_run_only():
    good = record([0.1, 0.2], [1, 1])
    bad = record([5.0], [1], scheduled=0.1, end=9.0, error="early_stop")
    alone, both = measure([good]), measure([good, bad])
    assert (both["completed"], both["failed"], both["duration_s"]) == (1, 1, 9.0)
    assert both["output_throughput"] == pytest.approx(2 / 9)
    assert {k: alone[k] for k in LATENCY_MEASURES} == {k: both[k] for k in LATENCY_MEASURES}


@st.composite
def requests(draw, min_chunks=1):
    scheduled = draw(st.floats(0, 100))
    waits = draw(st.lists(st.floats(0.001, 10), min_size=min_chunks, max_size=8))
    times = [scheduled + sum(waits[: i + 1]) for i in range(len(waits))]
    tokens = draw(st.lists(st.integers(1, 5), min_size=len(times), max_size=len(times)))
    error = draw(st.sampled_from([None, None, "early_stop"]))
    return record(times, tokens, scheduled=scheduled, end=times[-1] + draw(st.floats(0, 1)), error=error)


def close(a, b):
    assert a.keys() == b.keys()
    for key in a:
        if a[key] is None or b[key] is None:
            assert a[key] is b[key], key
        else:
            assert math.isclose(a[key], b[key], rel_tol=1e-6, abs_tol=1e-6), key


@given(st.lists(requests(), max_size=8))
def test_counts_add_up_and_ttft_is_within_e2e(sample):
    m = measure(sample)
    assert m["completed"] + m["failed"] == len(sample)
    good = [r for r in sample if r.error is None]
    assert m["total_output_tokens"] == sum(r.output_tokens for r in good)
    for statistic in STATISTICS:
        ttft, e2el = m[f"{statistic}_ttft_ms"], m[f"{statistic}_e2el_ms"]
        assert (ttft is None) == (e2el is None)
        if ttft is not None and statistic != "std":
            assert 0 <= ttft <= e2el + 1e-6
    if good:
        assert m["duration_s"] >= max(r.chunk_times_s[-1] - r.scheduled_s for r in good)


@given(st.lists(requests(), max_size=8), st.randoms())
def test_order_of_requests_does_not_matter(sample, rng: random.Random):
    shuffled = sample[:]
    rng.shuffle(shuffled)
    close(measure(sample), measure(shuffled))


@given(st.lists(requests(min_chunks=3), min_size=1, max_size=6), st.data())
def test_merging_chunks_changes_no_token_weighted_figure(sample, data):
    """Two chunks of the middle arriving as one: the wire says less, the means and totals stay."""
    merged = []
    for r in sample:
        i = data.draw(st.integers(1, len(r.chunk_tokens) - 2))
        tokens = [*r.chunk_tokens[:i], r.chunk_tokens[i] + r.chunk_tokens[i + 1], *r.chunk_tokens[i + 2 :]]
        times = r.chunk_times_s[:i] + r.chunk_times_s[i + 1 :]
        merged.append(replace(r, chunk_times_s=times, chunk_tokens=tokens))
    before, after = measure(sample), measure(merged)
    for m in (before, after):  # how ITL spreads, and on which side of a window's edge a token lies, is no longer said
        for name in [*(f"{s}_itl_ms" for s in set(STATISTICS) - {"mean"}), "steady_output_throughput"]:
            del m[name]
        for statistic in STATISTICS:
            del m[f"steady_{statistic}_itl_ms"]
    close(before, after)


@given(requests(min_chunks=2))
def test_splitting_an_even_chunk_changes_nothing(r):
    """A chunk of m tokens is m tokens that came evenly: sent one by one they measure the same."""
    times, tokens = [r.chunk_times_s[0]], [r.chunk_tokens[0]]
    for i in range(1, len(r.chunk_times_s)):
        gap, m = r.chunk_times_s[i] - r.chunk_times_s[i - 1], r.chunk_tokens[i]
        times += [r.chunk_times_s[i] - gap * (m - 1 - j) / m for j in range(m)]
        tokens += [1] * m
    close(measure([r]), measure([replace(r, chunk_times_s=times, chunk_tokens=tokens)]))
