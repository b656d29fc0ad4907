"""A GPU's stand-ins: streams whose copies come late, and engine parts that take the CPU for a GPU.

The device `cpu:0` differs from `cpu` by name alone, so the code for a GPU runs with real numbers: what is computed
happens at once, what a lane copies as late as its events allow, or at any moment before.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import hisparse_kernels as kernels
import pytest
import torch
from engine_cells import Probe
from hisparse_kernels import Plan
from torch import Tensor

from harness.engine import executor as executor_module
from harness.engine.kv import paged
from harness.engine.kv.cuda_lanes import CudaLanes
from harness.engine.kv.hierarchy import Hierarchy
from harness.engine.kv.lanes import Lane
from harness.schema import Config, Device

LIKE_GPU = torch.device("cpu", 0)


class Event:
    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.at = 0

    def record(self, stream: Stream) -> None:
        self.stream, self.at = stream, stream.launched


class Stream:
    """Runs what was launched in order, when `run_to` or its GPU's chance says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.launched = self.done = 0
        self._waiting: deque[Callable[[], object]] = deque()

    def launch(self, work: Callable[[], object]) -> None:
        self._waiting.append(work)
        self.launched += 1

    def wait_event(self, event: Event) -> None:
        if event.stream is not None:
            other, at = event.stream, event.at
            self.launch(lambda: other.run_to(at))

    def run_to(self, at: int) -> None:
        while self.done < at:
            self.done += 1
            self._waiting.popleft()()


class Streams:
    """As torch.cuda for `CudaLanes`. rng: lanes also run on their own, whenever something is launched."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng
        self._compute = self.current = Stream("compute")
        self.lanes: list[Stream] = []

    def compute(self) -> Stream:
        return self._compute

    def of_lane(self, lane: Lane) -> Stream:
        if lane.value not in [stream.name for stream in self.lanes]:
            self.lanes.append(Stream(lane.value))
        return next(stream for stream in self.lanes if stream.name == lane.value)

    def new_event(self) -> Event:
        return Event()

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self) -> None:
        for stream in (*self.lanes, self._compute):
            stream.run_to(stream.launched)

    def run(self, work: Callable[[], Any]) -> Any:
        """Launch on the current stream; the computation's runs at once, and so returns what the work does."""
        for lane in self.lanes if self._rng else ():
            assert self._rng is not None
            lane.run_to(self._rng.randint(lane.done, lane.launched))
        if self.current is not self._compute:
            self.current.launch(work)
            return None
        self._compute.run_to(self._compute.launched)
        return work()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Probe]:
    """Makes a probe whose engine takes LIKE_GPU for a GPU: padded batches, lanes of `Streams`."""
    current: list[Streams] = []  # of the engine that runs

    def launched(name: str) -> None:
        real = getattr(kernels, name)

        def launch(*args: Any, **options: Any) -> Any:
            return current[0].run(lambda: real(*args, **options)) if current else real(*args, **options)

        monkeypatch.setattr(kernels, name, launch)

    replay = kernels.replay

    def lenient(plan: Plan, cache: Tensor, host: Tensor, table: Tensor, page_size: int) -> None:
        """A GPU leaves moves of no position out."""
        total = int(plan.per_row.sum())
        lists = [part[:total] for part in plan[:3]]
        real = (lists[2] >= 0) & (lists[0] < len(cache))
        count = torch.tensor([int(real.sum())])
        replay(Plan(*(part[real].contiguous() for part in lists), count), cache, host, table, page_size)

    monkeypatch.setattr(kernels, "replay", lenient)
    for name in ("stage", "replay", "load", "append", "resolve", "match", "gather", "attend"):
        launched(name)
    monkeypatch.setattr(paged, "pin", lambda tensor: tensor)
    monkeypatch.setattr(executor_module, "compute_device", lambda config: LIKE_GPU)
    monkeypatch.setattr(executor_module.Executor, "_on_stream", lambda self: nullcontext())

    class Quiet:
        def synchronize(self) -> None:
            pass

    monkeypatch.setattr(executor_module, "compute_stream", Quiet)

    def make(config: Config, rng: random.Random | None = None) -> Probe:
        config.platform.device, config.platform.cuda_graphs = Device.cuda, False
        probe = Probe(config)
        executor, streams = probe.executor, Streams(rng)
        if isinstance(executor.kv, Hierarchy):
            executor.kv.lanes = CudaLanes(streams)
        run = probe.run

        def run_here(plan: Any) -> Tensor:
            current[:] = [streams]
            try:
                return run(plan)
            finally:
                current.clear()

        probe.run = run_here  # type: ignore[method-assign]
        return probe

    return make
