"""The closed loop without a network, and the lag monitor under a stall."""

from __future__ import annotations

import asyncio
import time

import pytest

from harness.loadgen.pacing import LagMonitor, closed_loop


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
        await asyncio.sleep(0.1)
        return time.perf_counter()

    start = time.perf_counter()
    asyncio.run(closed_loop(send, start_s=start, count=3, concurrency=3, stagger_s=0.02))
    for worker, (scheduled, sent) in first.items():
        assert scheduled == pytest.approx(start + worker * 0.02)
        assert sent >= scheduled


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
        async with LagMonitor() as lag:
            await asyncio.sleep(0.05)
            time.sleep(0.2)
            await asyncio.sleep(0.05)
        return lag.p99_ms

    assert asyncio.run(stalled()) > 150


def test_a_monitor_that_never_woke_says_so():
    async def short():
        async with LagMonitor() as lag:
            pass
        return lag.p99_ms

    assert asyncio.run(short()) is None
