"""The selection streams of a workload, kept for the next cell: most cells of an experiment replay the same ones."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from harness.schema import Config, WorkloadKind, to_plain
from workloads.replay import Block, Stream
from workloads.traces import Trace
from workloads.traces.shipped import find_trace
from workloads.traces.synthetic import SyntheticStream

KEEP_BYTES = 2 << 30  # figure 6 has 0.65 GB

_lock = threading.Lock()
_kept: dict[tuple[int, int], list[Block]] = {}  # by (request, layer)
_kept_of = ""  # what they are of
_kept_bytes = 0


def streams(config: Config, concurrency: int, repeat: int) -> Iterator[Stream]:
    """One stream of blocks per (request, layer), each made or read when it is iterated over, unless it was kept.

    A repeat of a synthetic workload has requests of its own. Raises TraceError.
    """
    work, k = config.workload, config.selector.top_k
    assert k is not None
    if work.kind is WorkloadKind.selection_trace:
        assert work.trace is not None
        trace = Trace(find_trace(work.trace))
        state = trace.path.stat()
        _begin(repr([str(trace.path), state.st_mtime_ns, state.st_size]))
        for request, layer in trace.streams:
            yield _keeping((request, layer), trace.blocks(request, layer))
        return
    _begin(repr([to_plain(config)["workload"], k]))
    requests = config.load.num_requests or concurrency * (config.load.requests_per_worker or 1)
    for request in range(repeat * requests, (repeat + 1) * requests):
        for layer in range(config.model.num_layers):
            yield _keeping((request, layer), SyntheticStream.of(work, k, request, layer))


def _begin(of: str) -> None:
    """Forget what was kept of another workload."""
    global _kept_of, _kept_bytes
    if of != _kept_of:
        _kept.clear()
        _kept_of, _kept_bytes = of, 0


def _keeping(key: tuple[int, int], stream: Iterable[Block]) -> Iterator[Block]:
    """The stream's blocks, kept once all are there, as long as there is room."""
    global _kept_bytes
    if key in _kept:
        yield from _kept[key]
        return
    blocks, size = [], 0
    for block in stream:
        size += sum(part.nbytes for part in block)
        if _kept_bytes + size <= KEEP_BYTES:
            blocks.append(block)
        yield block
    with _lock:
        if _kept_bytes + size <= KEEP_BYTES:
            _kept[key] = blocks
            _kept_bytes += size
