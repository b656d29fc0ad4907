"""A cell on its instances: what is warmed, flushed, read and written, and what is tried again. Stand-ins for Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.cluster import LoadgenError, NoRoom, PointEnd
from harness.config import load_cells
from harness.display import SweepDisplay
from harness.durable import StoreError
from harness.experiment import Cell, plan
from harness.instances import InstanceError
from harness.lease import Lease
from harness.loadgen.run import PointLoad, PointResult
from harness.loads import WARMUP_TOKENS
from harness.patience import Patience
from harness.recorder import Recorder
from harness.records import ResultRow, ServerStats, Status
from harness.served import ServedCell
from harness.store import read_env, read_row, stored_status
from harness.tracking import NullTracker


class FakeServer:
    """Counts what it is sent as a server would: every token decoded is one counted."""

    url = "http://127.0.0.1:1"
    nodes = ("node0",)

    def __init__(self, calls: list[Any]):
        self.calls = calls
        self.decoded = 1000  # of earlier points
        self.fails_start: InstanceError | None = None
        self.fails_flush: InstanceError | None = None
        self.is_lost = self.lost_others = False

    def wait_started(self, check: Callable[[], None]) -> str:
        check()
        if self.fails_start:
            raise self.fails_start
        return self.url

    def describe(self) -> dict[str, Any]:
        return {"nodes": self.checked_nodes()}

    def checked_nodes(self) -> list[dict[str, Any]]:
        return [{"node_id": name} for name in self.nodes]

    def check(self) -> None:
        if self.is_lost:
            raise InstanceError("the instance's actor is gone", may_pass=True)

    def check_others(self) -> None:
        self.check()
        if self.lost_others:
            raise InstanceError("rank 1 is gone", may_pass=True)

    def begin_point(self) -> ServerStats:
        self.calls.append("flush")
        if self.fails_flush:
            raise self.fails_flush
        return self.stats()

    def end_point(self, *, with_trace: bool) -> PointEnd:
        return PointEnd(self.stats(), self.new_log())

    def stats(self) -> ServerStats:
        self.check()
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


class FakeSeen:
    """What a load generator saw of a run in which nothing went wrong."""

    failure = None

    def result(self) -> PointResult:
        measures = {"output_throughput": 7.0}
        return PointResult(requests=[], measures=measures, status=Status.OK, reason=None, count_source="usage")


@dataclass
class Scene:
    """A cluster of stand-ins. `troubles`: what each measured run begins with, in order; none when they are used up."""

    calls: list[Any] = field(default_factory=list)
    troubles: list[Callable[[Scene], None]] = field(default_factory=list)
    on_start: list[Callable[[FakeServer], None]] = field(default_factory=list)
    server: FakeServer = None  # type: ignore[assignment]
    loads: list[PointLoad] = field(default_factory=list)
    avoided: list[list[str]] = field(default_factory=list)
    time_s: float = 0.0
    pauses: list[float] = field(default_factory=list)
    loadgens: int = 0
    has_placed: bool = False
    full: bool = False

    @contextmanager
    def instance(self, config: Any, failed: Any, check: Any) -> Iterator[FakeServer]:
        if self.full:
            raise NoRoom("no room for 1 CPU")
        self.has_placed = True
        self.server = FakeServer(self.calls)
        self.server.nodes = (f"node{len(self.avoided)}",)
        self.avoided.append(list(failed))
        if self.on_start:
            self.on_start.pop(0)(self.server)
        yield self.server

    @contextmanager
    def loadgen(self) -> Iterator[Scene]:
        self.loadgens += 1
        yield self

    def describe(self) -> dict[str, Any]:
        return {"number": self.loadgens}

    def run(self, load: PointLoad, on_progress: Callable[[int, int, float], None]) -> FakeSeen:
        self.loads.append(load)
        self.calls.append(("run", len(load.prompts)))
        if load.prompts[0].output_len > WARMUP_TOKENS and self.troubles:
            self.troubles.pop(0)(self)
        on_progress(0, 0, 0.0)
        self.server.decoded += sum(p.output_len for p in load.prompts)
        return FakeSeen()

    def wait(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time_s += seconds


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    """With one point."""
    return small(tmp_path, "load.concurrencies=[2]")


@pytest.fixture
def cells(tmp_path: Path) -> Cell:
    """With three points."""
    return small(tmp_path, "load.concurrencies=[1,2,4]", "load.num_requests=6", "load.requests_per_worker=null")


def small(tmp_path: Path, *more: str) -> Cell:
    overrides = ["experiment=quickstart", "offload=hisparse_sync", f"results_dir={tmp_path}"]
    overrides += ["workload.input_len=32", "workload.output_len=16", "load.requests_per_worker=3"]
    return plan(load_cells([*overrides, "load.warmup_requests=2", *more]))[0]


def run(cell: Cell, scene: Scene, **keys: Any) -> list[ResultRow]:
    """What is kept of the cell, in order; keys: of `cluster`."""
    for key, value in keys.items():
        setattr(cell.config.cluster, key, value)
    recorder = Recorder(NullTracker(), SweepDisplay(Console(quiet=True), [cell]))
    patience = Patience(cell.config.cluster, now=lambda: scene.time_s, wait=scene.wait)
    with Lease(scene.loadgen) as lease:
        ServedCell(cell, scene, lease, recorder, patience).run()  # type: ignore[arg-type]
    return recorder.rows


def env_of(cell: Cell, row: ResultRow) -> dict[str, Any]:
    folder = Path(cell.config.results_dir) / "quickstart" / row.cell_id
    return read_env(folder / f"c{row.concurrency}-r{row.repeat}")


def lose_server(scene: Scene) -> None:
    scene.server.is_lost = True


def lose_loadgen(scene: Scene) -> None:
    raise LoadgenError("the load generator died", may_pass=True)


def test_the_warm_up_is_over_before_anything_is_counted(cell: Cell) -> None:
    scene = Scene()
    (row,) = run(cell, scene)
    assert scene.calls == [("run", 2), "flush", "stats", ("run", 6), "stats"]
    tokens = 6 * 16  # of the measured requests alone: neither the 1,000 before nor the warm-up's
    assert row.measures["h2d_bytes"] == 64 * 2 * tokens
    assert row.measures["decode_only_throughput"] == pytest.approx(50)
    assert row.measures["hit_rate"] == pytest.approx(0.8)
    assert row.measures["misses_per_step"] == pytest.approx(2)
    assert row.measures["exposed_io_ms_per_token"] == pytest.approx(1)
    assert row.measures["output_throughput"] == 7.0
    assert row.measures["peak_running"] == 3
    assert env_of(cell, row)["scheduling"] == {"exclusive": True, "tries": 1}


def test_a_point_is_written_beside_the_next_ones_warm_up_and_never_beside_what_is_measured(cells: Cell) -> None:
    scene = Scene()
    folder = Path(cells.config.results_dir) / "quickstart" / cells.cell_id
    known: list[int] = []

    def look(scene: Scene) -> None:
        known.append(len(list(folder.glob("c*-r*"))))
        assert not list(folder.glob(".*"))

    scene.troubles = [look] * 3
    rows = run(cells, scene)
    assert known == [0, 1, 2]  # all before it are on disk when a point is measured
    assert [row.concurrency for row in rows] == [1, 2, 4]


def test_a_disk_that_refuses_a_point_ends_the_cell_before_another_is_measured(
    cells: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*args: Any, **kwargs: Any) -> None:
        raise StoreError("c1-r0: No space left on device")

    monkeypatch.setattr("harness.recorder.write_point", refuses)
    scene = Scene()
    with pytest.raises(StoreError, match="No space"):
        run(cells, scene)
    assert scene.calls.count(("run", 6)) == 1


def test_warm_up_requests_are_other_prompts_and_short(cell: Cell) -> None:
    scene = Scene()
    run(cell, scene)
    warmup, measured = scene.loads
    assert not {p.sha for p in warmup.prompts} & {p.sha for p in measured.prompts}
    assert {p.output_len for p in warmup.prompts} == {WARMUP_TOKENS}
    assert {p.output_len for p in measured.prompts} == {16}
    assert (warmup.concurrency, measured.concurrency) == (2, 2)
    assert measured.ignore_eos


def test_a_point_that_could_not_begin_is_a_failed_row_with_the_reason(cell: Cell, tmp_path: Path) -> None:
    def in_flight(server: FakeServer) -> None:
        server.fails_flush = InstanceError("requests are in flight")

    scene = Scene(on_start=[in_flight])
    (row,) = run(cell, scene)
    assert (row.status, row.reason) == (Status.FAILED, "requests are in flight")
    (key,) = stored_status(tmp_path / "quickstart")
    stored = read_row(tmp_path / "quickstart" / key[0] / "c2-r0")
    assert stored.reason == row.reason
    assert stored.measures["h2d_bytes"] is None
    assert len(scene.avoided) == 1 and not scene.pauses  # a server that refuses does so again


def test_a_lost_server_is_brought_up_elsewhere_and_the_point_runs_again(cells: Cell) -> None:
    scene = Scene(troubles=[lambda scene: None, lose_server])
    rows = run(cells, scene, retries=2, retry_wait_s=3.0)
    assert [(row.concurrency, row.status) for row in rows] == [(1, "ok"), (2, "ok"), (4, "ok")]
    assert scene.avoided == [[], ["node0"]] and scene.pauses == [3.0]
    said = [env_of(cells, row)["scheduling"] for row in rows]
    assert [s["tries"] for s in said] == [1, 2, 1]
    assert said[1]["failures"] == ["the instance's actor is gone"]
    assert [env_of(cells, row)["instance"]["nodes"][0]["node_id"] for row in rows] == ["node0", "node1", "node1"]
    assert rows[1].measures["h2d_bytes"] == 64 * 2 * 6 * 16  # counted on the second server alone


def test_a_point_that_loses_every_server_fails_and_the_next_one_still_runs(cells: Cell) -> None:
    scene = Scene(troubles=[lose_server] * 3)
    rows = run(cells, scene, retries=2, retry_wait_s=3.0)
    assert [(row.concurrency, row.status) for row in rows] == [(1, "failed"), (2, "ok"), (4, "ok")]
    assert rows[0].reason == "the instance's actor is gone (try 3 of 3)"
    assert scene.pauses[:2] == [3.0, 6.0]
    assert len(env_of(cells, rows[0])["scheduling"]["failures"]) == 2


def test_without_retries_what_is_left_fails_with_the_server(cells: Cell) -> None:
    rows = run(cells, Scene(troubles=[lose_server]), retries=0)
    assert [row.status for row in rows] == ["failed"] * 3
    assert {row.reason for row in rows} == {"the instance's actor is gone"}


def test_a_lost_load_generator_is_replaced_beside_the_same_server(cells: Cell) -> None:
    scene = Scene(troubles=[lose_loadgen, lose_loadgen])
    rows = run(cells, scene, retries=2)
    assert [row.status for row in rows] == ["ok"] * 3
    assert scene.loadgens == 3 and len(scene.avoided) == 1
    assert env_of(cells, rows[0])["loadgen"] == {"number": 3}
    assert env_of(cells, rows[0])["scheduling"]["tries"] == 3
    assert scene.calls.count("flush") == 5  # before each try


def test_a_load_generator_that_fails_by_itself_is_not_tried_again(cells: Cell) -> None:
    def fails(scene: Scene) -> None:
        raise LoadgenError("the load generator failed: KeyError()", may_pass=False)

    scene = Scene(troubles=[fails])
    rows = run(cells, scene)
    assert [row.status for row in rows] == ["failed", "ok", "ok"]
    assert not scene.pauses


def test_a_lost_rank_ends_the_point_at_once_and_it_runs_again_elsewhere(cells: Cell) -> None:
    """The first node's server would wait for it, and the load generator for the server."""
    scene = Scene(troubles=[lambda scene: None, lambda scene: setattr(scene.server, "lost_others", True)])
    rows = run(cells, scene, retries=2)
    assert [(row.concurrency, row.status) for row in rows] == [(1, "ok"), (2, "ok"), (4, "ok")]
    assert len(scene.avoided) == 2 and scene.loadgens == 2
    assert env_of(cells, rows[1])["scheduling"]["failures"] == ["rank 1 is gone"]


def test_a_server_that_found_its_port_taken_is_tried_again(cells: Cell) -> None:
    def taken(server: FakeServer) -> None:
        server.fails_start = InstanceError("the server ended with exit code 1: address in use", may_pass=True)

    rows = run(cells, scene := Scene(on_start=[taken, taken]))
    assert [row.status for row in rows] == ["ok"] * 3 and scene.pauses == [5.0, 10.0]


def test_a_server_that_will_never_start_is_not_tried_again(cells: Cell) -> None:
    def no_flag(server: FakeServer) -> None:
        server.fails_start = InstanceError("unrecognized arguments: --enable-x")

    rows = run(cells, scene := Scene(on_start=[no_flag]))
    assert [(row.status, row.reason) for row in rows] == [("failed", "unrecognized arguments: --enable-x")] * 3
    assert len(scene.avoided) == 1 and not scene.pauses
    assert env_of(cells, rows[0])["instance"]["nodes"] == [{"node_id": "node0"}]


def test_a_point_out_of_time_fails_and_the_next_one_runs_with_another_load_generator(cells: Cell) -> None:
    def hangs(scene: Scene) -> None:
        scene.time_s += 40

    scene = Scene(troubles=[hangs])
    rows = run(cells, scene, point_timeout_s=30.0)
    assert [row.status for row in rows] == ["failed", "ok", "ok"]
    assert rows[0].reason == "the point took longer than cluster.point_timeout_s=30"
    assert scene.loadgens == 2 and len(scene.avoided) == 1 and not scene.pauses


def test_a_cell_out_of_time_leaves_failed_rows(cells: Cell) -> None:
    def slow(scene: Scene) -> None:
        scene.time_s += 40

    rows = run(cells, Scene(troubles=[slow] * 3), cell_timeout_s=60.0)
    assert [row.status for row in rows] == ["ok", "failed", "failed"]
    assert {row.reason for row in rows[1:]} == {"the cell took longer than cluster.cell_timeout_s=60"}


def test_a_spent_budget_leaves_points_without_a_row(cells: Cell) -> None:
    def slow(scene: Scene) -> None:
        scene.time_s += 40

    rows = run(cells, Scene(troubles=[slow] * 3), budget_s=60.0)
    assert [(row.concurrency, row.status) for row in rows] == [(1, "ok"), (2, "ok")]  # what runs is not cut short


def test_no_room_at_all_is_nobody_s_row(cells: Cell) -> None:
    with pytest.raises(NoRoom):
        run(cells, Scene(full=True))
    rows = run(cells, Scene(full=True, has_placed=True))  # others had room
    assert {(row.status, row.reason) for row in rows} == {("failed", "no room for 1 CPU")}


class Told(NullTracker):
    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def start_cell(self, cell_id: str, config: dict[str, Any]) -> None:
        self.calls.append(("start", cell_id))

    def log_point(self, row: ResultRow) -> None:
        self.calls.append(("point", row.concurrency))

    def finish_cell(self) -> None:
        self.calls.append(("finish", None))


def test_side_by_side_a_tracker_is_told_of_one_cell_after_the_other(cells: Cell, cell: Cell) -> None:
    tracker = Told()
    recorder = Recorder(tracker, SweepDisplay(Console(quiet=True), [cells, cell]), one_by_one=False)
    with recorder.cell(cells):
        recorder.keep(cells, cells.points[0], cells.row(cells.points[0], Status.OK))
        with recorder.cell(cell):
            recorder.keep(cells, cells.points[1], cells.row(cells.points[1], Status.OK))
            recorder.keep(cell, cell.points[0], cell.row(cell.points[0], Status.OK))
        assert tracker.calls == [("start", cell.cell_id), ("point", 2), ("finish", None)]
    assert tracker.calls[3:] == [("start", cells.cell_id), ("point", 1), ("point", 2), ("finish", None)]
