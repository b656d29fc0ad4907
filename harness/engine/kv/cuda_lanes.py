"""The lanes of a GPU: a CUDA stream for each, ordered against the computation by events (HiSparse, section 3.5).

Nothing here waits in the host: `submit` queues a copy behind what was computed so far, `wait` has what is computed
from now on come after the copy. So a CUDA graph can capture both, as long as a transfer is waited for in the capture
that it was submitted in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from harness.engine.device import compute_stream
from harness.engine.kv.lanes import Lane

OWN_STREAM = (Lane.prefetch, Lane.staging, Lane.write_through)
"""The three lanes; what a layer waits for at once (demand, load) is copied by the computation's own stream."""


class Streams(Protocol):
    """What a GPU has for it: streams with `wait_event`, events with `record(stream)`, torch.cuda's or a test's."""

    def compute(self) -> Any:
        """The stream that everything is computed on."""

    def of_lane(self, lane: Lane) -> Any:
        """That lane's stream, of the computation's device; the same one at every call."""

    def new_event(self) -> Any: ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """What is launched inside goes to that stream."""

    def synchronize(self) -> None:
        """The host waits for everything."""


@functools.cache
def _lane_stream(lane: Lane) -> torch.cuda.Stream:
    """One for all engines of the process: torch has 32, and hands them out again from the first."""
    return torch.cuda.Stream()


class TorchStreams:
    def compute(self) -> torch.cuda.Stream:
        return compute_stream()

    def of_lane(self, lane: Lane) -> torch.cuda.Stream:
        return _lane_stream(lane)

    def new_event(self) -> torch.cuda.Event:
        return torch.cuda.Event()

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class CudaTransfer:
    """One submitted copy, queued on its lane."""

    __slots__ = ("_copy", "_done", "_lanes")

    def __init__(self, lanes: CudaLanes, copy: Callable[[], object] | None, done: Any):
        self._lanes, self._done = lanes, done
        # What the copy reads must not be freed, and its memory used again by the computation, before the computation
        # has been told to come after the copy.
        self._copy = copy

    def settle(self) -> None:
        """Have what is computed from now on come after the copy."""
        if self._done is not None:
            self._lanes.order_after(self._done)
        self._done = self._copy = None

    @property
    def is_made(self) -> bool:
        """Whether what is computed now may rely on the copy."""
        return self._done is None


class CudaLanes:
    """As `Lanes`, on one GPU. `submit`, `wait` and `settle` order work; none of them takes the host's time."""

    def __init__(self, streams: Streams | None = None):
        self._streams = streams or TorchStreams()

    def submit(self, lane: Lane, copy: Callable[[], object], num_bytes: int) -> CudaTransfer:
        """Queue a copy behind all that was submitted to the computation's stream before, and to its lane."""
        compute = self._streams.compute()
        if lane not in OWN_STREAM:
            with self._streams.on(compute):
                copy()
            return CudaTransfer(self, None, None)
        stream = self._streams.of_lane(lane)
        begin, done = self._streams.new_event(), self._streams.new_event()
        begin.record(compute)
        stream.wait_event(begin)
        with self._streams.on(stream):
            copy()
        done.record(stream)
        return CudaTransfer(self, copy, done)

    def wait(self, transfer: CudaTransfer) -> None:
        """As `CudaTransfer.settle`."""
        transfer.settle()

    def arrived(self, transfer: CudaTransfer) -> bool:
        """Whether `wait` has been called: the host does not ask the GPU."""
        return transfer.is_made

    def order_after(self, event: Any) -> None:
        self._streams.compute().wait_event(event)

    def synchronize(self) -> None:
        """The host waits for all copies and computation; between steps, for who reads the pools."""
        self._streams.synchronize()
