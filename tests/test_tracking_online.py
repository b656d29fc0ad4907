"""W&B online, against a server of our own: one run a cell however often a sweep goes on, each row in it once.

The server is `fake_wandb`; the client is the real one, wandb-core and all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_wandb import FakeWandb, fake_wandb
from test_tracking import HANG_S, KEY, draw, row, wandb_tracker

from harness import tracking
from harness.records import ResultRow, Status
from harness.store import write_point

RESULTS = "exp"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandb]:
    for name in ("WANDB_MODE", "WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB__SERVICE_WAIT", str(HANG_S))
    monkeypatch.setattr(tracking, "INIT_TIMEOUT_S", HANG_S)  # a busy machine goes online too
    monkeypatch.setattr(tracking, "FINISH_TIMEOUT_S", HANG_S)
    with fake_wandb() as fake:
        monkeypatch.setenv("WANDB_BASE_URL", fake.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        yield fake


def measured(tmp_path: Path, concurrency: int, status: Status = Status.OK, throughput: float = 1.0) -> ResultRow:
    """A row that is on disk, as every logged row is."""
    made = row(concurrency, status, output_throughput=throughput)
    write_point(tmp_path / RESULTS, made, [], config_yaml="a: 1\n", env={}, server_log="")
    return made


def sweep(tmp_path: Path, said: list[str], *rows: ResultRow, **config: object) -> None:
    """What one run of a sweep tells the tracker of one cell."""
    tracker = wandb_tracker(tmp_path, said)
    try:
        tracker.start_cell("cell-a", {"model": {"name": "m"}, "load": {"repeats": 1}} | config)
        for made in rows:
            tracker.log_point(made)
    finally:
        tracker.close()


def logged(server: FakeWandb) -> list[tuple[int, str]]:
    return [(row["concurrency"], row["status"]) for row in server.by_name()["cell-a"].rows]


def test_a_sweep_that_goes_on_goes_on_in_its_run_and_logs_nothing_twice(tmp_path: Path, server: FakeWandb) -> None:
    said: list[str] = []
    one, two = measured(tmp_path, 1), measured(tmp_path, 2, Status.FAILED)
    sweep(tmp_path, said, one, two)
    assert logged(server) == [(1, "ok"), (2, "failed")]
    again = measured(tmp_path, 2, throughput=2.0)  # retry_failed
    four = measured(tmp_path, 4)
    sweep(tmp_path, said, again, four, load={"repeats": 2})
    sweep(tmp_path, said)  # a cell that was opened and left
    (run,) = server.runs.values()
    assert logged(server) == [(1, "ok"), (2, "failed"), (2, "ok"), (4, "ok")]
    assert run.steps == [0, 1, 2, 3]
    assert (run.variables["groupName"], run.variables["jobType"]) == ("exp", "cell")
    assert said == []
    assert "RunResumeStatus" in server.asked


def test_a_row_that_was_stored_and_not_logged_is_logged_next_time(tmp_path: Path, server: FakeWandb) -> None:
    """The driver was killed in between, or tracked nothing at first."""
    said: list[str] = []
    rows = [measured(tmp_path, c) for c in (1, 2, 4)]
    sweep(tmp_path, said, rows[0])
    assert sorted(logged(server)) == [(1, "ok"), (2, "ok"), (4, "ok")]
    assert said == []


def test_a_sweep_that_finds_all_done_logs_what_was_missed_once(tmp_path: Path, server: FakeWandb) -> None:
    """The driver was killed between the last rows' files and their log, before the figures."""
    said: list[str] = []
    sweep(tmp_path, said, measured(tmp_path, 1))
    left = [measured(tmp_path, c) for c in (2, 4)]

    def all_done() -> bool:
        tracker = wandb_tracker(tmp_path, said)
        try:
            due = tracker.catch_up({"cell-a": {"model": {"name": "m"}}, "cell-never-measured": {}})
            if due:
                tracker.log_figures([], [made.to_flat() for made in left])
        finally:
            tracker.close()
        return due

    assert all_done()
    assert sorted(logged(server)) == [(1, "ok"), (2, "ok"), (4, "ok")]
    assert not all_done()
    assert sorted(logged(server)) == [(1, "ok"), (2, "ok"), (4, "ok")]
    assert set(server.by_name()) == {"cell-a", "report"} and server.by_name()["cell-a"].steps == [0, 1, 2]
    assert said == []


def test_the_report_has_its_figures_and_its_table_and_a_later_one_goes_on_in_its_run(
    tmp_path: Path, server: FakeWandb
) -> None:
    png = tmp_path / "throughput.png"
    draw(png)
    said: list[str] = []
    table = [{"offload": "full_kv", "concurrency": 1, "hit_rate": None}, {"offload": "hisparse_sync", "b": 128}]
    for rows in (table[:1], table):
        tracker = wandb_tracker(tmp_path, said)
        try:
            tracker.log_figures([png, png.with_suffix(".pdf")], rows)
        finally:
            tracker.close()
    assert said == []
    (report,) = server.runs.values()
    assert (report.variables["groupName"], report.variables["jobType"]) == ("exp", "report")
    assert report.steps == [0, 1]
    last = report.rows[-1]
    assert report.uploads[last["figures/throughput"]["path"]] == png.read_bytes()
    assert last["results"]["nrows"] == 2
    stored = json.loads(report.uploads[last["results"]["path"]])
    assert stored["columns"] == ["offload", "concurrency", "hit_rate", "b"]
    assert stored["data"] == [["full_kv", 1, None, None], ["hisparse_sync", None, None, 128]]


def test_two_cells_and_two_experiments_of_one_name_are_runs_of_their_own(tmp_path: Path, server: FakeWandb) -> None:
    for home in (tmp_path / "a", tmp_path / "b"):
        tracker = wandb_tracker(home, [])
        for cell in ("cell-a", "cell-b"):
            tracker.start_cell(cell, {})
        tracker.close()
    names = [str(run.variables["displayName"]) for run in server.runs.values()]
    assert sorted(names) == ["cell-a", "cell-a", "cell-b", "cell-b"]


def test_a_network_lost_in_the_middle_costs_no_point_and_its_rows_come_with_the_next_sweep(
    tmp_path: Path, server: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    rows = [measured(tmp_path, c) for c in (1, 2, 4)]
    tracker = wandb_tracker(tmp_path, said)
    with monkeypatch.context() as patch:
        patch.setattr(tracking, "FINISH_TIMEOUT_S", 2.0)
        try:
            tracker.start_cell("cell-a", {})
            tracker.log_point(rows[0])
            server.down = True
            begin = time.monotonic()
            tracker.log_point(rows[1])
            assert time.monotonic() - begin < 60  # W&B tries for days: nothing waits for it while points are measured
            patch.setattr(tracking, "INIT_TIMEOUT_S", 2.0)
            tracker.finish_cell()
            tracker.start_cell("cell-b", {})
            tracker.finish_cell()
        finally:
            tracker.close()
    assert len(said) == 1 and "going on offline, upload later with `wandb sync" in said[0]
    server.down = False
    sweep(tmp_path, said, rows[2])
    assert sorted(logged(server)) == [(1, "ok"), (2, "ok"), (4, "ok")]


def test_offline_files_of_several_sweeps_become_one_run_by_the_command_that_is_named(
    tmp_path: Path, server: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    said: list[str] = []
    for concurrency in (1, 2, 4):
        sweep(tmp_path, said, measured(tmp_path, concurrency))
    assert server.runs == {}
    folders = sorted(str(path) for path in (tmp_path / RESULTS / "wandb").glob("*run-*"))
    assert len(folders) == 3
    env = {k: v for k, v in os.environ.items() if k != "WANDB_MODE"}
    done = subprocess.run([sys.executable, "-m", "wandb", "sync", *folders], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(server.runs) == 1
    assert logged(server) == [(1, "ok"), (2, "ok"), (4, "ok")]


KILLED = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_tracking import wandb_tracker
from test_tracking_online import measured
tracker = wandb_tracker(Path(sys.argv[1]), [])
tracker.start_cell("cell-a", {})
for concurrency in (1, 2):
    tracker.log_point(measured(Path(sys.argv[1]), concurrency))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_driver_leaves_no_service_and_the_next_one_completes_its_run(
    tmp_path: Path, server: FakeWandb
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    said: list[str] = []
    sweep(tmp_path, said, measured(tmp_path, 4))
    assert sorted(logged(server)) == [(1, "ok"), (2, "ok"), (4, "ok")]
    assert said == []


def test_the_key_is_in_no_file_and_no_body(
    tmp_path: Path, server: FakeWandb, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep(tmp_path, [], measured(tmp_path, 1))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("debug" in path.name for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert server.bodies and not any(KEY.encode() in body for body in server.bodies)
    assert KEY not in "".join(capfd.readouterr())
