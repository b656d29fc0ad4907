"""Lanes and the emulated link by themselves."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lane_doubles import Clock

from harness.engine.kv import lanes as lanes_module
from harness.engine.kv import link as link_module
from harness.engine.kv.lanes import Lane, Lanes, Transfer
from harness.engine.kv.link import Link
from harness.schema import LinkConfig

SIDE = (Lane.prefetch, Lane.staging, Lane.write_through)


@given(
    transfers=st.lists(st.tuples(st.floats(0, 0.01), st.integers(0, 10**6)), max_size=30),
    bandwidth=st.integers(10**6, 10**10),
    latency_us=st.floats(0, 1000),
)
def test_a_link_carries_one_transfer_after_the_other(
    transfers: list[tuple[float, int]], bandwidth: int, latency_us: float
) -> None:
    """Against a queue with one server: (pause before, bytes) in, arrivals out."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_module, "time", clock)
        link = Link(LinkConfig(bandwidth=bandwidth, latency_us=latency_us))
        submitted = list(itertools.accumulate((pause for pause, _ in transfers), initial=clock.now))[1:]
        ends: list[float] = []
        for at, (_, num_bytes) in zip(submitted, transfers, strict=True):
            clock.now = at
            begins = max([at, *ends[-1:]])
            ends.append(begins + num_bytes / bandwidth)
            assert link.reserve(num_bytes) == pytest.approx(ends[-1] + latency_us * 1e-6)


def test_all_lanes_share_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(link_module, "time", clock)
    lanes = Lanes(Link(LinkConfig(bandwidth=1000, latency_us=0.0)))
    arrivals = [lanes.submit(lane, lambda: None, 500).arrival for lane in Lane]
    assert arrivals == pytest.approx([100.5, 101.0, 101.5, 102.0, 102.5])


def test_who_waits_sleeps_until_the_arrival() -> None:
    lanes = Lanes(Link(LinkConfig(bandwidth=10**6, latency_us=500.0)))
    for lane in (*SIDE, Lane.demand):
        begin = time.perf_counter()
        transfer = lanes.submit(lane, lambda: None, 2000)
        lanes.wait(transfer)
        assert time.perf_counter() - begin >= 0.0025
        assert lanes.arrived(transfer)


def test_nothing_has_arrived_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (link_module, lanes_module):
        monkeypatch.setattr(module, "time", clock)
    lanes = Lanes(Link(LinkConfig(bandwidth=10**6, latency_us=500.0)))
    transfer = lanes.submit(Lane.staging, lambda: None, 2000)
    transfer.settle()
    clock.now += 0.0024
    assert transfer.is_made and not lanes.arrived(transfer)
    clock.now += 0.0002
    assert lanes.arrived(transfer)


def test_a_memory_copy_has_arrived_when_it_is_made() -> None:
    lanes = Lanes(Link(LinkConfig()))
    done: list[int] = []
    transfer = lanes.submit(Lane.staging, lambda: done.append(1), 10**12)
    lanes.wait(transfer)
    assert done == [1]
    assert lanes.arrived(transfer)


def test_the_worker_needs_nobody_to_wait() -> None:
    made = threading.Event()
    Lanes(Link(LinkConfig())).submit(Lane.write_through, made.set, 1)
    assert made.wait(200)


def test_every_copy_is_made_exactly_once() -> None:
    """The worker and the waiter race for 2,000 copies."""
    lanes, made = Lanes(Link(LinkConfig())), list[int]()
    for i in range(2000):
        transfer = lanes.submit(SIDE[i % 3], lambda i=i: made.append(i), 1)  # type: ignore[misc]
        if i % 2:
            lanes.wait(transfer)
            assert i in made  # not the last for certain: the worker may be catching up on earlier ones
    lanes.wait(transfer)
    while len(made) < 2000:  # the worker is on its way
        time.sleep(0.001)
    assert sorted(made) == list(range(2000))


def test_what_a_copy_raises_is_raised_where_it_is_waited_for() -> None:
    def broken() -> None:
        raise IndexError("beyond the pool")

    lanes = Lanes(Link(LinkConfig()))
    for lane in Lane:
        transfer = lanes.submit(lane, broken, 1)
        with pytest.raises(IndexError, match="beyond the pool"):
            lanes.wait(transfer)
    good = lanes.submit(Lane.prefetch, lambda: None, 1)
    lanes.wait(good)  # and the worker lives


def test_a_made_transfer_holds_its_tensors_no_longer() -> None:
    class Big:
        def __call__(self) -> None: ...

    big = Big()
    gone = weakref.ref(big)
    transfer = Transfer(big, 0.0)
    del big
    assert gone() is not None
    transfer.settle()
    assert gone() is None


def test_the_worker_ends_with_its_lanes() -> None:
    before = set(threading.enumerate())
    lanes = Lanes(Link(LinkConfig()))
    lanes.wait(lanes.submit(Lane.staging, lambda: None, 1))
    (worker,) = set(threading.enumerate()) - before
    del lanes
    gc.collect()
    worker.join(200)
    assert not worker.is_alive()
