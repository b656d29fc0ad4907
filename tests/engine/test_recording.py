"""Recorded selections are what the engine selected, request by request, and recording changes nothing else."""

from __future__ import annotations

import http.client
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engine_cells import Driver, Probe, cell, cell_of, random_requests
from running_server import DEADLINE_S, SERVER, RunningServer
from torch import Tensor

from harness.engine.batch import DecodeBatch
from harness.engine.selectors.recording import Recording, Spool, trace_header
from harness.schema import Config
from harness.validate import ConfigError
from workloads.replay import ReplayConfig, replay
from workloads.traces import Trace

LIVES = [(0, 30, 40), (0, 5, 90), (3, 60, 25), (20, 1, 30), (35, 40, 70), (60, 17, 20)]  # arrives, prompt, new tokens


def opened(spool: Spool, config: Config, folder: Path) -> Trace:
    path = folder / "selections.trace"
    path.write_bytes(spool.trace_bytes(trace_header(config)))
    return Trace(path)


def run(config: Config) -> tuple[Probe, dict[tuple[int, int], list[tuple[list[int], int]]]]:
    """LIVES on two rows; what the selector answered by (request, layer): selection and context length."""
    driver = Driver(random_requests(random.Random(5), 200, LIVES), max_rows=2, rng=random.Random(6))
    probe = Probe(config)
    selector = probe.executor.selector
    assert isinstance(selector, Recording)
    seen: dict[tuple[int, int], list[tuple[list[int], int]]] = defaultdict(list)
    inner, deciding = selector._inner, selector._inner.select
    decoding: tuple[int, ...] = ()

    def select(layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        selection = deciding(layer, batch, query)
        for request, chosen, length in zip(decoding, selection.tolist(), batch.seq_lens.tolist(), strict=True):
            seen[request, layer].append(([p for p in chosen if p >= 0], length))
        return selection

    inner.select = select  # type: ignore[method-assign]
    for i, request in enumerate(driver.requests):
        probe.add(i, request)
    while not driver.done:
        plan = driver.plan()
        decoding = plan.decode
        if plan:
            probe.executor.run(plan)
        for i in driver.advance(plan):
            probe.executor.remove(i)
    return probe, seen


@pytest.mark.parametrize("model", ["dsa", "quest"])
def test_a_trace_is_what_was_selected_and_replays_to_the_engines_own_misses(model: str, tmp_path: Path) -> None:
    """Requests share rows one after another; the numbers in the trace follow their prefills."""
    config = cell_of(model, "hisparse_sync", "trace.record=true")
    probe, seen = run(config)
    selector = probe.executor.selector
    assert isinstance(selector, Recording)
    trace = opened(selector.take(), config, tmp_path)
    assert (trace.header.source, trace.header.model, trace.header.top_k) == ("native", config.model.name, 16)
    assert trace.streams == sorted(seen)
    for (request, layer), steps in seen.items():
        stream = trace.stream(request, layer)
        assert stream.context_lens.tolist() == [length for _, length in steps]
        assert [sorted(p for p in row if p >= 0) for row in stream.selections.tolist()] == [sorted(s) for s, _ in steps]
    (result,) = replay([[(s.selections, s.context_lens)] for s in trace], [ReplayConfig("lru", 24)])
    counters = probe.kv.counters
    assert sum(int(m.sum()) for m in result.misses) == counters.misses > 900
    assert sum(int(s.sum()) for s in result.selected) == counters.lookups


def test_recording_changes_no_logit() -> None:
    plain, recorded = (Probe(cell_of("dsa", "hisparse_sync", f"trace.record={on}")) for on in ("false", "true"))
    driver = Driver(random_requests(random.Random(7), 200, LIVES[:3]), max_rows=2, rng=random.Random(8))
    for i, request in enumerate(driver.requests):
        for probe in (plain, recorded):
            probe.add(i, request)
    while not driver.done:
        if plan := driver.plan():
            assert torch.equal(plain.run(plan), recorded.run(plan))
        for i in driver.advance(plan):
            for probe in (plain, recorded):
                probe.executor.remove(i)


@pytest.fixture
def recording() -> Iterator[RunningServer]:
    server = RunningServer(cell([*SERVER, "trace.record=true"]))
    yield server
    server.close()


def fetch(server: RunningServer) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.request("GET", "/selection_trace")
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_the_server_gives_what_came_since_the_flush(recording: RunningServer, tmp_path: Path) -> None:
    recording.complete(list(range(40, 60)), 9)
    assert recording.call("GET", "/flush_cache")[0] == 200
    recording.complete(list(range(40, 70)), 12)
    status, data = fetch(recording)
    assert status == 200
    path = tmp_path / "selections.trace"
    path.write_bytes(data)
    trace = Trace(path)
    assert trace.streams == [(0, 0), (0, 1)]
    assert trace.stream(0, 1).context_lens.tolist() == list(range(31, 42))  # the first token is prefill's
    assert fetch(recording) == (200, b"")


def test_a_server_that_does_not_record_says_so() -> None:
    server = RunningServer(cell(SERVER))
    try:
        status, data = fetch(server)
        assert status == 409
        assert b"trace.record=true" in data
    finally:
        server.close()


def test_there_is_nothing_to_record_where_everything_is_selected() -> None:
    with pytest.raises(ConfigError, match=r"trace\.record=true has nothing to record"):
        cell_of("dense_mla", "full_kv", "trace.record=true")
