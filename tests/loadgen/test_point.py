"""Shares of a point and what is made of them: nothing lost, nothing twice, timestamps on one clock, the verdict."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.health import Health
from harness.loadgen.metrics import measure
from harness.loadgen.point import Driven, PointLoad, conclude, split
from harness.loadgen.run import drive, run_point
from harness.records import CLIENT_MEASURES, RequestRecord, Status
from harness.schema import LoadConfig
from workloads.prompt import make_prompt

HEALTHY = Health(lag_p99_ms=1.0, lag_mean_ms=0.5, lag_max_ms=2.0, cpu_s=0.2, duration_s=2.0)


def prompts(count):
    return [make_prompt([number] * 4, 3) for number in range(count)]


def load(count=10, concurrency=4, due_s=None, **limits):
    return PointLoad(
        base_url="http://h:1",
        model="m",
        prompts=prompts(count),
        concurrency=concurrency,
        load=LoadConfig(concurrencies=[concurrency], num_requests=count, **limits),
        due_s=due_s,
    )


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 6), st.booleans())
def test_shares_are_the_whole(count, concurrency, parts, is_open):
    due_s = [0.5 * i for i in range(count)] if is_open else None
    shares = split(load(count, concurrency, due_s), parts)
    assert len(shares) == min(parts, concurrency, count)
    assert sum(share.concurrency for share in shares) == concurrency
    numbers = [n for share in shares for n in share.numbers]
    assert sorted(numbers) == list(range(count))
    for share in shares:
        assert [p.token_ids[0] for p in share.prompts] == share.numbers
        assert share.due_s == (None if due_s is None else [due_s[n] for n in share.numbers])
        assert share.concurrency >= 1
    if not is_open:
        workers = [share.first_worker + i for share in shares for i in range(share.concurrency)]
        assert workers == list(range(concurrency))


def record(number, scheduled, first, *, last=None, error=None, output_tokens=3, prompt_tokens=None):
    last = first + 0.2 if last is None else last
    return RequestRecord(
        request_id=f"request-{number:05d}",
        worker=number,
        prompt_sha=str(number),
        input_len=4,
        output_len=3,
        scheduled_s=scheduled,
        sent_s=scheduled,
        chunk_times_s=[first, (first + last) / 2, last],
        chunk_tokens=[1, 1, 1],
        end_s=last,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        count_source="usage",
        error=error,
    )


def driven(requests, started_at_s=100.0, health=HEALTHY, **more):
    return Driven(requests=requests, held_back=0, health=health, started_at_s=started_at_s, **more)


def test_processes_are_merged_by_their_timestamps():
    """Two clocks, the second 5 s ahead: on the first one its process started 1 s after the first process."""
    mine, other = [record(0, 0.0, 0.5), record(2, 0.7, 1.6)], [record(1, 0.0, 0.5)]
    result = conclude(
        load(3, 2),
        [driven(mine, 100.0), driven(other, 106.0)],
        clock_ahead_s=[0.0, 5.0],
        clock_uncertainty_ms=0.3,
    )
    assert [r.request_id[-1] for r in result.requests] == ["0", "1", "2"]
    assert [r.scheduled_s for r in result.requests] == pytest.approx([0, 1.0, 0.7])
    assert result.requests[1].chunk_times_s == pytest.approx([1.5, 1.6, 1.7])
    assert result.measures["duration_s"] == pytest.approx(1.8)
    assert result.measures["peak_concurrency"] == 2
    assert (result.measures["load_processes"], result.measures["clock_uncertainty_ms"]) == (2, 0.3)
    assert set(result.measures) == set(CLIENT_MEASURES)
    # latencies are differences on one clock each: no shift changes them
    apart = measure([*mine, *other])
    assert all(result.measures[f"{s}_ttft_ms"] == pytest.approx(apart[f"{s}_ttft_ms"]) for s in ("mean", "p99"))


def test_the_worst_process_counts():
    busy = replace(HEALTHY, lag_p99_ms=30.0, lag_mean_ms=20.0, cpu_s=1.9)
    m = conclude(load(), [driven([record(0, 0, 0.5)]), driven([record(1, 0, 0.5)], health=busy)]).measures
    assert (m["lag_p99_ms"], m["cpu_share"], m["lag_share"]) == (30.0, pytest.approx(0.95), pytest.approx(0.04))
    assert m["cpu_us_per_token"] == pytest.approx((0.2 + 1.9) * 1e6 / 6)


def test_a_process_that_gave_up_fails_the_point():
    gave_up = driven([], health=None, gave_up=(Status.FAILED, "warm-up: no route"))
    result = conclude(load(), [driven([record(0, 0, 1)]), gave_up])
    assert (result.status, result.reason, result.requests) == (Status.FAILED, "warm-up: no route", [])
    assert set(result.measures) == set(CLIENT_MEASURES)


GOOD = [record(i, 0.0, 0.1 + i / 10) for i in range(10)]
QUICK = [record(i, 0.0, 0.006) for i in range(10)]
BROKEN = [replace(GOOD[0], error="http_5xx", error_detail="HTTP 500: x"), *GOOD[1:]]


@pytest.mark.parametrize(
    ("requests", "health", "limits", "reason"),
    [
        (GOOD, {}, {}, None),
        (BROKEN, {}, {}, "1 of 10 requests failed: http_5xx x1"),
        (BROKEN, {}, {"max_failed_share": 0.1}, None),
        (BROKEN, {}, {"max_failed_share": 0.05}, "1 of 10 requests failed (load.max_failed_share=0.05)"),
        (BROKEN, {}, {"max_failed_share": 0.1, "min_completed": 10}, "9 requests completed, fewer than"),
        ([replace(GOOD[0], error="wrong_length"), *GOOD[1:]], {}, {"max_failed_share": 1.0}, "wrong_length x1"),
        ([replace(GOOD[0], output_tokens=4), *GOOD[1:]], {}, {}, "counted 31 output tokens where 30 came"),
        ([replace(GOOD[0], output_tokens=4), *GOOD[1:]], {}, {"max_token_mismatch": 0.05}, None),
        ([replace(GOOD[0], prompt_tokens=5), *GOOD[1:]], {}, {}, "5 prompt tokens where 4 were sent (in 1 requests)"),
        ([replace(GOOD[0], prompt_tokens=5, input_len=None), *GOOD[1:]], {}, {}, None),
        (GOOD, {"lag_p99_ms": 150.0}, {}, "150 ms late at p99 (load.max_lag_p99_ms=100)"),
        (GOOD, {"lag_mean_ms": 60.0}, {}, "0.11 of the mean TTFT (load.max_lag_share=0.1)"),
        (GOOD, {"lag_mean_ms": 60.0}, {"max_lag_share": 0.2}, None),
        # a quick server's TTFT: what is within 2 ms spoils nothing, what is beyond does
        (QUICK, {"lag_mean_ms": 1.5}, {}, None),
        (QUICK, {"lag_mean_ms": 2.5}, {}, "0.42 of the mean TTFT (load.max_lag_share=0.1)"),
        (GOOD, {"cpu_s": 1.9}, {}, "it computed for 0.95 of the time (load.max_cpu_share=0.9)"),
    ],
)
def test_what_makes_a_point_invalid(requests, health, limits, reason):
    result = conclude(load(**limits), [driven(requests, health=replace(HEALTHY, **health))])
    if reason is None:
        assert (result.status, result.reason) == (Status.OK, None)
    else:
        assert result.status is Status.INVALID
        assert reason in result.reason
        assert "\n" not in result.reason


def test_an_open_loop_against_a_server(paced):
    due_s = [0.0, 0.05, 0.06, 0.2]

    async def point():
        async with paced.Server(paced.Scenario(first_s=0.1, step_s=0.01, together=range(4))) as server:
            whole = PointLoad(
                base_url=server.base_url,
                model="m",
                prompts=paced.prompts(4, output_len=4),
                concurrency=8,
                load=paced.limits(),
                due_s=due_s,
            )
            return await run_point(whole), server

    result, server = asyncio.run(point())
    assert result.status is Status.OK
    by_number = sorted(result.requests, key=lambda r: r.request_id)
    assert [r.scheduled_s for r in by_number] == pytest.approx(due_s)
    assert all(r.sent_s >= r.scheduled_s for r in by_number)
    assert server.max_running == 4
    assert result.measures["offered_request_rate"] == pytest.approx(15)


def test_two_shares_begin_together_and_make_one_point(paced):
    async def both():
        async with paced.Server(paced.Scenario(first_s=0.1, step_s=0.005, together=range(4))) as server:
            whole = PointLoad(
                base_url=server.base_url, model="m", prompts=paced.prompts(8), concurrency=4, load=paced.limits()
            )
            at_s = time.time() + 0.3

            async def begin():
                return at_s

            seen = await asyncio.gather(*(drive(share, begin=begin) for share in split(whole, 2)))
            return conclude(whole, seen), seen, at_s, server

    result, seen, at_s, server = asyncio.run(both())
    assert result.status is Status.OK
    assert all(part.started_at_s >= at_s for part in seen)
    assert sorted(r.request_id for r in result.requests) == [f"request-{i:05d}" for i in range(8)]
    assert {r.worker for r in result.requests} == {0, 1, 2, 3}
    assert server.max_running == 4
    assert result.measures["steady_requests"] >= 1


def test_a_share_that_must_not_begin_sends_nothing(paced):
    async def alone():
        async with paced.Server(paced.Scenario()) as server:
            whole = PointLoad(
                base_url=server.base_url, model="m", prompts=paced.prompts(2), concurrency=2, load=paced.limits()
            )

            async def begin():
                return None

            return await drive(whole, begin=begin), server

    seen, server = asyncio.run(alone())
    assert seen.gave_up[0] is Status.FAILED
    assert server.truths == []
