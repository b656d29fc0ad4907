"""Whole points against the paced server: the truth is read, N and C are honoured, the verdict is right."""

from __future__ import annotations

import asyncio
import pickle
import time

import pytest
from paced_process import undisturbed

from harness.loadgen.run import PointLoad, run_point
from harness.records import CLIENT_MEASURES, Status

pytestmark = pytest.mark.usefixtures("reader")

NEAR_MS = 30  # the test machine is busy: generous, and still far from what the mistakes would give


def truth_ms(server):
    """Mean TTFT, TPOT and E2E by the server's own record."""
    truths = server.truths
    mean = {
        "ttft": sum(t.first_s - t.arrived_s for t in truths) / len(truths),
        "e2el": sum(t.last_s - t.arrived_s for t in truths) / len(truths),
        "tpot": sum((t.last_s - t.first_s) / (t.tokens - 1) for t in truths) / len(truths),
    }
    return {name: value * 1e3 for name, value in mean.items()}


def assert_reads_the_truth(result, server, *, output_len, ttft_shift_ms=0.0):
    truth, m = truth_ms(server), result.measures
    assert m["mean_ttft_ms"] == pytest.approx(truth["ttft"] + ttft_shift_ms, abs=NEAR_MS)
    assert m["mean_e2el_ms"] == pytest.approx(truth["e2el"], abs=NEAR_MS)
    assert m["mean_tpot_ms"] == pytest.approx(truth["tpot"], rel=0.2)
    assert m["mean_itl_ms"] == pytest.approx(truth["tpot"], rel=0.2)
    assert m["total_output_tokens"] == sum(t.tokens for t in server.truths)
    assert all(r.output_tokens == output_len == sum(r.chunk_tokens) for r in result.requests)


@pytest.mark.parametrize(
    ("scenario", "source"),
    [
        ({}, "continuous_usage"),
        ({"usage": "final"}, "usage"),
        ({"role_first": True, "first_s": 0.2}, "continuous_usage"),
        ({"role_first": True, "first_s": 0.2, "usage": "final"}, "usage"),
        ({"usage_late_s": 0.3}, "continuous_usage"),
        ({"usage_late_s": 0.3, "usage": "final"}, "usage"),
        ({"text_held": 8}, "continuous_usage"),
    ],
)
def test_reads_the_truth(paced, scenario, source):
    def check():
        result, server = paced.run(paced.Scenario(**scenario), output_len=16)
        assert (result.status, result.reason, result.count_source) == (Status.OK, None, source)
        assert_reads_the_truth(result, server, output_len=16)
        assert set(result.measures) == set(CLIENT_MEASURES)
        assert result.measures["lag_p99_ms"] >= 0

    undisturbed(check)


@pytest.mark.parametrize("usage", ["continuous", "final"])
def test_several_tokens_per_chunk(paced, usage):
    def check():
        result, server = paced.run(paced.Scenario(tokens_per_chunk=4, usage=usage), output_len=32)
        assert result.status is Status.OK
        assert all(r.chunk_tokens == [4] * 8 for r in result.requests)
        # The wire brings the first four tokens together, 3 steps after the first was made.
        shift = 3 * truth_ms(server)["tpot"]
        assert result.measures["mean_ttft_ms"] == pytest.approx(truth_ms(server)["ttft"] + shift, abs=NEAR_MS)
        assert result.measures["mean_itl_ms"] == pytest.approx(truth_ms(server)["tpot"], rel=0.2)

    undisturbed(check)


@pytest.mark.parametrize("scenario", [{"text_held": 16, "usage": "final"}, {"text_held": 16, "keep_count_held": True}])
def test_held_back_text_without_counts_marks_the_point(paced, scenario):
    result, _ = paced.run(paced.Scenario(**scenario), output_len=32)
    assert result.status is Status.INVALID
    assert "held tokens back in 4 requests" in result.reason
    assert result.measures["total_output_tokens"] == 4 * 32  # the count itself is right


def test_a_late_client_and_miscounted_prompts_make_it_invalid(paced):
    result, _ = paced.run(paced.Scenario(prompt_tokens_off=1), limits={"max_lag_p99_ms": 0.0})
    assert result.status is Status.INVALID
    assert "counted 5 prompt tokens where 4 were sent (in 4 requests)" in result.reason
    assert "load.max_lag_p99_ms=0" in result.reason


def test_n_and_c_are_honoured_and_warmup_is_apart(paced):
    result, server = paced.run(paced.Scenario(step_s=0.003, together=range(3, 8)), requests=20, concurrency=5, warmup=3)
    assert server.max_running == 5
    assert len(server.truths) == 23
    assert len(result.requests) == result.measures["completed"] == 20
    assert len({t.prompt for t in server.truths}) == 23
    warm, measured = server.truths[:3], server.truths[3:]
    assert max(t.last_s for t in warm) < min(t.arrived_s for t in measured)  # drained
    assert {t.prompt[0] for t in warm} == {20, 21, 22}
    assert min(r.scheduled_s for r in result.requests) == 0.0
    assert all(r.scheduled_s <= r.sent_s < r.chunk_times_s[0] < r.end_s for r in result.requests)
    assert len({r.request_id for r in result.requests}) == 20


def test_more_workers_than_a_default_connection_pool(paced):
    result, server = paced.run(paced.Scenario(together=range(128)), requests=128, concurrency=128, output_len=2)
    assert server.max_running == 128
    assert result.status is Status.OK


def test_a_long_prompt_arrives_whole(paced):
    async def point():
        async with paced.Server(paced.Scenario()) as server:
            prompts = paced.prompts(1, input_len=200_000)
            load = PointLoad(base_url=server.base_url, model="m", prompts=prompts, concurrency=1, load=paced.limits())
            return await run_point(load), server

    result, server = asyncio.run(point())
    assert result.status is Status.OK
    assert result.measures["total_input_tokens"] == len(server.truths[0].prompt) == 200_000


def test_progress_is_reported(paced):
    seen = []

    async def point():
        async with paced.Server(paced.Scenario()) as server:
            load = PointLoad(
                base_url=server.base_url,
                model="m",
                prompts=paced.prompts(4),
                concurrency=2,
                load=paced.limits(),
            )
            await run_point(load, lambda p: seen.append((p, p.done, p.running, p.events)))

    asyncio.run(point())
    progress = seen[-1][0]
    assert seen[0][1] == 0
    assert seen[-1][1:3] == (progress.total, 0) == (4, 0)
    assert progress.events >= 4 * 8
    assert progress.elapsed_s > 0
    assert progress.failed == 0


def test_stopping_closes_every_connection(paced):
    async def stop():
        async with paced.Server(paced.Scenario(fail_at=1, failure="hang")) as server:
            load = PointLoad(
                base_url=server.base_url,
                model="m",
                prompts=paced.prompts(3),
                concurrency=3,
                load=paced.limits(),
            )
            task = asyncio.create_task(run_point(load))
            while server.running < 3:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            deadline = time.monotonic() + 60
            while server.running and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            return server

    server = asyncio.run(stop())
    assert [t.hung_up for t in server.truths] == [True] * 3


def test_a_point_is_plain_data(paced):
    load = PointLoad(base_url="http://h:1", model="m", prompts=paced.prompts(2), concurrency=2, load=paced.limits())
    assert pickle.loads(pickle.dumps(load)) == load


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"base_url": "host:80"}, "base_url"),
        ({"concurrency": 0}, "concurrency"),
        ({"prompts": []}, "num_requests"),
    ],
)
def test_bad_points_are_refused(paced, override, message):
    good = {
        "base_url": "http://h:1",
        "model": "m",
        "prompts": paced.prompts(1),
        "concurrency": 1,
        "load": paced.limits(),
    }
    with pytest.raises(ValueError, match=message):
        PointLoad(**(good | override))
