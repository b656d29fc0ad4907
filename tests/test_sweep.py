"""The order of things around a measurement: what is warmed, flushed, read and written, with stand-ins for Ray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.config import load_cells
from harness.display import SweepDisplay
from harness.experiment import Cell, plan
from harness.instances import InstanceError
from harness.loadgen.run import PointLoad, PointResult
from harness.loads import WARMUP_TOKENS, prompt_source
from harness.records import ServerStats, Status
from harness.store import read_row, stored_status
from harness.sweep import Sweep
from harness.tracking import NullTracker


class FakeServer:
    """Counts what it is sent as a server would: every token decoded is one counted."""

    url = "http://127.0.0.1:1"

    def __init__(self, calls: list[Any]):
        self.calls = calls
        self.decoded = 1000  # of earlier points
        self.fails_flush = False

    def check(self) -> None: ...

    def flush(self) -> None:
        self.calls.append("flush")
        if self.fails_flush:
            raise InstanceError("requests are in flight")

    def stats(self) -> ServerStats:
        self.calls.append("stats")
        lookups, misses = 10 * self.decoded, 2 * self.decoded
        return ServerStats(
            decode_tokens=self.decoded,
            decode_seconds=self.decoded / 50,
            decode_steps=self.decoded,
            lookups=lookups,
            misses=misses,
            h2d_bytes=64 * misses,
            exposed_io_seconds=self.decoded / 1000,
            peak_running=3,
        )

    def new_log(self) -> str:
        return "log of this point"


class FakeLoadgen:
    def __init__(self, server: FakeServer, calls: list[Any]):
        self.server, self.calls = server, calls
        self.loads: list[PointLoad] = []

    def run(self, load: PointLoad, on_progress: Callable[[int, int, float], None] | None = None) -> PointResult:
        self.loads.append(load)
        self.calls.append(("run", len(load.prompts)))
        self.server.decoded += sum(p.output_len for p in load.prompts)
        measures = {"output_throughput": 7.0}
        return PointResult(requests=[], measures=measures, status=Status.OK, reason=None, count_source="usage")


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    overrides = ["experiment=quickstart", "offload=hisparse_sync", "load.concurrencies=[2]", f"results_dir={tmp_path}"]
    overrides += ["workload.input_len=32", "workload.output_len=16", "load.requests_per_worker=3"]
    return plan(load_cells([*overrides, "load.warmup_requests=2"]))[0]


def run_point(cell: Cell, server: FakeServer, loadgen: FakeLoadgen) -> Any:
    sweep = Sweep([cell], NullTracker(), SweepDisplay(Console(quiet=True), [cell]))
    return sweep._run_point(cell, cell.points[0], prompt_source(cell.config), server, loadgen, {"driver": {}})  # type: ignore[arg-type]


def test_the_warm_up_is_over_before_anything_is_counted(cell: Cell) -> None:
    calls: list[Any] = []
    server = FakeServer(calls)
    loadgen = FakeLoadgen(server, calls)
    row = run_point(cell, server, loadgen)
    assert calls == [("run", 2), "flush", "stats", ("run", 6), "stats"]
    tokens = 6 * 16  # of the measured requests alone: neither the 1,000 before nor the warm-up's
    assert row.measures["h2d_bytes"] == 64 * 2 * tokens
    assert row.measures["decode_only_throughput"] == pytest.approx(50)
    assert row.measures["hit_rate"] == pytest.approx(0.8)
    assert row.measures["misses_per_step"] == pytest.approx(2)
    assert row.measures["exposed_io_ms_per_token"] == pytest.approx(1)
    assert row.measures["output_throughput"] == 7.0
    assert row.measures["peak_running"] == 3


def test_warm_up_requests_are_other_prompts_and_short(cell: Cell) -> None:
    calls: list[Any] = []
    server = FakeServer(calls)
    loadgen = FakeLoadgen(server, calls)
    run_point(cell, server, loadgen)
    warmup, measured = loadgen.loads
    assert not {p.sha for p in warmup.prompts} & {p.sha for p in measured.prompts}
    assert {p.output_len for p in warmup.prompts} == {WARMUP_TOKENS}
    assert {p.output_len for p in measured.prompts} == {16}
    assert (warmup.concurrency, measured.concurrency) == (2, 2)
    assert measured.ignore_eos


def test_a_point_that_could_not_begin_is_a_failed_row_with_the_reason(cell: Cell, tmp_path: Path) -> None:
    calls: list[Any] = []
    server = FakeServer(calls)
    server.fails_flush = True
    row = run_point(cell, server, FakeLoadgen(server, calls))
    assert (row.status, row.reason) == (Status.FAILED, "requests are in flight")
    (key,) = stored_status(tmp_path / "quickstart")
    stored = read_row(tmp_path / "quickstart" / key[0] / "c2-r0")
    assert stored.reason == row.reason
    assert stored.measures["h2d_bytes"] is None
