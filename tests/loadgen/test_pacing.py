"""The closed and the open loop without a network, and the health monitor under a stall."""

from __future__ import annotations

import asyncio
import time

import pytest

from harness.loadgen.health import HealthMonitor
from harness.loadgen.pacing import AHEAD_S, closed_loop, open_loop


@pytest.mark.parametrize(("count", "concurrency"), [(20, 4), (3, 8), (1, 1), (0, 3)])
def test_n_and_c_are_honoured_in_order(count, concurrency):
    sent, running, peak = [], 0, 0

    async def send(turn):
        nonlocal running, peak
        sent.append(turn)
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.002)
        running -= 1
        return time.perf_counter()

    asyncio.run(closed_loop(send, start_s=time.perf_counter(), count=count, concurrency=concurrency))
    assert [turn.number for turn in sent] == list(range(count))
    assert peak == min(count, concurrency)
    assert {turn.worker for turn in sent} == set(range(peak))


def test_each_worker_is_due_when_its_last_request_ended():
    ends = {}

    async def send(turn):
        if turn.worker in ends:
            assert turn.scheduled_s == ends[turn.worker]
        await asyncio.sleep(0.001)
        ends[turn.worker] = time.perf_counter()
        return ends[turn.worker]

    asyncio.run(closed_loop(send, start_s=time.perf_counter(), count=12, concurrency=3))
    assert len(ends) == 3


def test_stagger_spaces_the_first_requests():
    first = {}

    async def send(turn):
        first.setdefault(turn.worker, (turn.scheduled_s, time.perf_counter()))
        await asyncio.sleep(0.5)
        return time.perf_counter()

    start = time.perf_counter()
    asyncio.run(closed_loop(send, start_s=start, count=3, concurrency=3, stagger_s=0.2))
    for worker, (scheduled, handed_over) in first.items():
        assert scheduled == pytest.approx(start + worker * 0.2)
        assert handed_over >= scheduled - AHEAD_S


def test_an_exception_ends_every_worker():
    cancelled = []

    async def send(turn):
        if turn.number == 2:
            raise RuntimeError("bug")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(turn.number)
            raise

    with pytest.raises(ExceptionGroup):
        asyncio.run(closed_loop(send, start_s=time.perf_counter(), count=9, concurrency=3))
    assert sorted(cancelled) == [0, 1]


def test_a_stall_shows_in_p99():
    async def stalled():
        async with HealthMonitor() as lag:
            await asyncio.sleep(0.05)
            time.sleep(0.4)
            await asyncio.sleep(0.05)
        return lag.health.lag_p99_ms

    assert asyncio.run(stalled()) > 250


def test_a_monitor_that_never_woke_says_so():
    async def short():
        async with HealthMonitor() as lag:
            pass
        return lag.health.lag_p99_ms

    assert asyncio.run(short()) is None


def test_a_closed_loop_ends_by_time_and_lets_what_runs_end():
    sent, ended = [], []

    async def send(turn):
        sent.append(turn.scheduled_s)
        await asyncio.sleep(0.05)
        ended.append(turn.number)
        return time.perf_counter()

    start = time.perf_counter()
    asyncio.run(closed_loop(send, start_s=start, count=1000, concurrency=2, max_seconds=0.2))
    assert 2 <= len(sent) < 20
    assert sorted(ended) == list(range(len(sent)))
    assert max(sent) <= start + 0.2


def run_open(due_s, limit, hold_s, together=1):
    """(turn, when it was sent) of every request, each taking `hold_s`, and longer until so many have run at once."""
    seen, running, peak = [], 0, 0

    async def send(turn):
        nonlocal running, peak
        seen.append((turn, time.perf_counter()))
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(hold_s)
        while peak < together:
            await asyncio.sleep(0.001)
        running -= 1
        return time.perf_counter()

    start = time.perf_counter()
    asyncio.run(open_loop(send, start_s=start, due_s=due_s, limit=limit, worker=3))
    return start, seen, peak


def test_an_open_loop_does_not_wait_for_answers():
    due_s = [0.0, 0.02, 0.02, 0.05]
    start, seen, peak = run_open(due_s, limit=10, hold_s=0.1, together=4)
    assert peak == 4
    assert [turn.number for turn, _ in seen] == [0, 1, 2, 3]
    assert [turn.scheduled_s - start for turn, _ in seen] == pytest.approx(due_s)
    assert all(sent >= turn.scheduled_s for turn, sent in seen)
    assert {turn.worker for turn, _ in seen} == {3}


def test_beyond_the_limit_requests_wait_and_stay_due_when_they_were():
    start, seen, peak = run_open([0.0, 0.0, 0.0, 0.0], limit=1, hold_s=0.05)
    assert peak == 1
    assert [turn.scheduled_s - start for turn, _ in seen] == pytest.approx([0] * 4)
    assert seen[3][1] - start >= 0.15


def test_an_open_loop_ends_with_its_first_error():
    async def send(turn):
        if turn.number == 1:
            raise RuntimeError("boom")
        await asyncio.sleep(30)
        return 0.0

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(open_loop(send, start_s=time.perf_counter(), due_s=[0.0, 0.01, 60.0], limit=5))
    assert caught.group_contains(RuntimeError, match="boom")


def test_cpu_time_is_counted():
    async def busy():
        async with HealthMonitor() as monitor:
            until = time.process_time() + 0.1
            while time.process_time() < until:
                pass
        return monitor.health

    health = asyncio.run(busy())
    assert 0.1 <= health.cpu_s <= health.duration_s * 1.5


def test_a_timer_that_rings_early_sends_nothing_early(monkeypatch):
    sleep = asyncio.sleep
    monkeypatch.setattr("harness.loadgen.pacing.asyncio.sleep", lambda wait_s: sleep(0.7 * wait_s))
    start = time.perf_counter()
    seen = []

    async def send(turn):
        seen.append((turn.scheduled_s, time.perf_counter()))
        return time.perf_counter()

    asyncio.run(open_loop(send, start_s=start, due_s=[0.02, 0.04, 0.07], limit=2))
    assert len(seen) == 3
    assert all(sent >= scheduled for scheduled, sent in seen)
