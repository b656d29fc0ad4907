"""The order that a GPU's lanes keep, with stand-ins for its streams and events."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
import torch
from gpu_doubles import Streams
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.kv.cuda_lanes import OWN_STREAM, CudaLanes
from harness.engine.kv.lanes import Lane


@given(seed=st.integers(0, 10**6), lanes=st.lists(st.sampled_from(list(Lane)), min_size=1, max_size=30))
def test_a_copy_is_between_what_came_before_and_what_waits(seed: int, lanes: list[Lane]) -> None:
    """Of each copy: it sees what was computed before it was submitted, and who has waited for it sees the copy."""
    rng, streams = random.Random(seed), Streams(random.Random(seed + 1))
    under_test, computed, copied = CudaLanes(streams), [0], dict[int, int]()
    transfers = {}
    for i, lane in enumerate(lanes):
        streams.run(lambda i=i: computed.append(i + 1))  # type: ignore[misc]

        def copy(i: int = i) -> None:
            streams.run(lambda: copied.setdefault(i, computed[-1]))

        transfers[i] = under_test.submit(lane, copy, 1)
        if rng.random() < 0.5:
            i, transfer = transfers.popitem()
            under_test.wait(transfer)
            assert under_test.arrived(transfer)
            streams.run(lambda: None)
            assert i in copied
    for transfer in transfers.values():
        transfer.settle()
    streams.run(lambda: None)
    assert sorted(copied) == list(range(len(lanes)))
    assert all(seen >= i + 1 for i, seen in copied.items())


def test_nobody_waits_for_a_lane_before_wait() -> None:
    streams = Streams()
    lanes, made = CudaLanes(streams), list[Lane]()
    open_ones = [lanes.submit(lane, lambda lane=lane: streams.run(lambda: made.append(lane)), 1) for lane in OWN_STREAM]  # type: ignore[misc]
    streams.run(lambda: None)
    assert made == []  # the computation goes on beside all three
    assert [stream.name for stream in streams.lanes] == ["prefetch", "staging", "write_through"]
    for count, transfer in enumerate(reversed(open_ones), 1):
        assert not transfer.is_made
        lanes.wait(transfer)
        streams.run(lambda: None)
        assert made == list(reversed(OWN_STREAM))[:count]  # each for itself


@pytest.mark.parametrize("lane", [Lane.demand, Lane.load])
def test_what_is_needed_at_once_is_part_of_the_computation(lane: Lane) -> None:
    streams = Streams()
    done: list[str] = []
    transfer = CudaLanes(streams).submit(lane, lambda: streams.run(lambda: done.append("copy")), 1)
    assert done == ["copy"]
    assert transfer.is_made
    assert streams.lanes == []


def test_a_lane_keeps_the_order_of_its_copies() -> None:
    streams = Streams()
    lanes, made = CudaLanes(streams), list[int]()
    transfers = [lanes.submit(Lane.prefetch, lambda i=i: streams.run(lambda: made.append(i)), 1) for i in range(9)]  # type: ignore[misc]
    lanes.wait(transfers[4])
    streams.run(lambda: None)
    assert made == [0, 1, 2, 3, 4]


def test_what_a_copy_reads_is_kept_until_the_computation_comes_after_it() -> None:
    """Else torch would give its memory to the next tensor of the computation, while the lane still reads it."""
    streams = Streams()
    lanes, records = CudaLanes(streams), torch.ones(3)
    kept = weakref.ref(records)
    transfer = lanes.submit(Lane.write_through, records.sum, 1)
    del records
    gc.collect()
    assert kept() is not None
    lanes.wait(transfer)
    gc.collect()
    assert kept() is None


def test_a_transfer_is_waited_for_once() -> None:
    streams = Streams()
    lanes = CudaLanes(streams)
    transfer = lanes.submit(Lane.staging, lambda: None, 1)
    for _ in range(3):
        transfer.settle()
    assert streams.compute().launched == 1  # a graph must not wait for an event of an earlier one
