"""Tracking: what the mode becomes, what an offline run file holds, and that W&B's trouble stays its own."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from wandb_files import stored_runs

from harness import tracking
from harness.records import ResultRow, Status
from harness.schema import TrackerConfig, TrackerKind
from harness.tracking import NullTracker, make_tracker, resolve_mode

HANG_S = 200.0  # of whatever is waited for
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, mode or server of whoever runs the tests, and patience with a machine that has much else to do."""
    monkeypatch.setenv("WANDB__SERVICE_WAIT", str(HANG_S))
    monkeypatch.setattr(tracking, "INIT_TIMEOUT_S", HANG_S)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def row(concurrency: int, status: Status = Status.OK, **measures: float | None) -> ResultRow:
    return ResultRow(
        experiment="exp",
        cell_id="cell-a",
        engine="native",
        model="m",
        selector="dsa",
        platform="cpu",
        offload="full_kv",
        top_k=8,
        cache_slots=None,
        workload="w",
        input_len=1,
        output_len=2,
        concurrency=concurrency,
        num_requests=4,
        repeat=1,
        status=status,
        reason=None if status is Status.OK else "why",
        measures=dict(measures),
    )


def wandb_processes() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if _is_wandbs(process)]


def _is_wandbs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        return process.status() != psutil.STATUS_ZOMBIE and any("wandb" in word for word in process.cmdline())
    return False


def assert_ended() -> None:
    """Whatever W&B had running ends; nothing else ends it."""
    _, left = psutil.wait_procs(wandb_processes(), timeout=HANG_S)
    assert left == []


def wandb_tracker(results: Path, said: list[str], **cfg: Any) -> tracking.Tracker:
    config = TrackerConfig(kind=TrackerKind.wandb, **cfg)
    return make_tracker(config, experiment="exp", results_dir=results, say=said.append)


def test_offline_runs_hold_points_config_and_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_RUN_ID", "the-same-for-all")
    png = tmp_path / "throughput.png"
    draw(png)
    said: list[str] = []
    tracker = wandb_tracker(tmp_path, said, mode="offline", project="proj")
    try:
        tracker.start_cell("cell-a", {"model": {"name": "glm_tiny", "num_layers": 4}})
        assert len(wandb_processes()) > 0
        tracker.log_point(row(1, output_throughput=10.5, completed=4, hit_rate=None))
        tracker.log_point(row(16, Status.INVALID, output_throughput=80.0))
        tracker.finish_cell()
        tracker.start_cell("cell-b", {})
        tracker.log_figures([png, tmp_path / "throughput.pdf"], [row(1).to_flat(), {"concurrency": 2.5, "extra": "x"}])
    finally:
        tracker.close()
    assert_ended()
    tracker.close()
    assert said == []
    assert capfd.readouterr() == ("", "")

    runs = stored_runs(tmp_path / "exp")
    assert set(runs) == {"cell-a", "cell-b", "report"}
    assert len({run.run.run_id for run in runs.values()}) == 3
    cell = runs["cell-a"]
    assert (cell.run.project, cell.run.run_group, cell.run.job_type) == ("proj", "exp", "cell")
    assert cell.config["model"] == {"name": "glm_tiny", "num_layers": 4}
    assert cell.step_metrics["*"] == "concurrency"
    first, second = ({k: v for k, v in p.items() if not k.startswith("_")} for p in cell.points)
    assert first == {"concurrency": 1, "repeat": 1, "status": "ok", "output_throughput": 10.5, "completed": 4}
    assert second == {
        "concurrency": 16,
        "repeat": 1,
        "status": "invalid",
        "reason": "why",
        "output_throughput": 80.0,
    }

    report = runs["report"]
    assert (report.run.run_group, report.run.job_type) == ("exp", "report")
    media = {p.parent.name: p for p in tmp_path.glob("exp/wandb/offline-run-*/files/media/*/**/*") if p.is_file()}
    assert media["figures"].read_bytes() == png.read_bytes()
    table = json.loads(media["table"].read_text())
    assert len(table["data"]) == 2
    assert table["data"][1][table["columns"].index("extra")] == "x"

    again = wandb_tracker(tmp_path, said, mode="offline", project="proj")  # the report of a sweep that goes on
    again.log_figures([png], [row(1).to_flat()])
    again.close()
    assert stored_runs(tmp_path / "exp")["report"].run.run_id == report.run.run_id
    for file in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert KEY.encode() not in file.read_bytes(), file


def draw(png: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8), (200, 30, 30)).save(png)


def test_no_network_goes_on_offline_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens on the discard port
    monkeypatch.setattr(tracking, "INIT_TIMEOUT_S", 1.0)
    said: list[str] = []
    tracker = wandb_tracker(tmp_path, said)
    try:
        for cell in ("cell-a", "cell-b"):
            tracker.start_cell(cell, {})
            tracker.log_point(row(2, duration_s=1.0))
    finally:
        tracker.close()
    assert len(said) == 1
    assert said[0].startswith("W&B: not online (")
    assert "\n" not in said[0]
    runs = stored_runs(tmp_path / "exp")
    assert [runs[cell].points[0]["duration_s"] for cell in ("cell-a", "cell-b")] == [1.0, 1.0]
    assert_ended()
    assert not any(KEY.encode() in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_a_stalled_upload_turns_the_rest_offline(tmp_path: Path) -> None:
    said: list[str] = []
    tracker = wandb_tracker(tmp_path, said, mode="offline")
    tracker._mode = "online"

    class Stalled:
        def finish(self) -> None:
            raise TimeoutError

    tracker._run = Stalled()
    tracker.finish_cell()
    assert tracker._mode == "offline"
    assert len(said) == 1
    assert "longer than 30 s" in said[0]


def test_what_wandb_raises_is_one_line_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    class Broken:
        def log(self, point: dict[str, Any], step: int) -> None:
            raise RuntimeError("disk full\nand more")

        def define_metric(self, *args: Any, **kwargs: Any) -> None:
            return None

        def finish(self) -> None:
            raise OSError("gone")

    said: list[str] = []
    tracker = wandb_tracker(tmp_path, said, mode="offline")
    monkeypatch.setattr(wandb, "init", lambda **kwargs: Broken())
    for cell in ("a", "b"):
        tracker.start_cell(cell, {})
        tracker.log_point(row(1))
        tracker.log_point(row(2))
    monkeypatch.setattr(wandb, "init", lambda **kwargs: 1 / 0)
    tracker.start_cell("c", {})
    tracker.log_point(row(1))
    tracker.log_figures([tmp_path / "missing.png"], [])
    tracker.close()
    tail = "; the results on disk are not affected"
    assert [line.removesuffix(tail) for line in said] == [
        "W&B: logging a point failed (RuntimeError: disk full)",
        "W&B: finishing a run failed (OSError: gone)",
        "W&B: opening a run failed (ZeroDivisionError: division by zero)",
        said[3].removesuffix(tail),
    ]
    assert said[3].startswith("W&B: logging the figures failed (")
    assert_ended()


def test_a_point_takes_no_time(tmp_path: Path) -> None:
    """Milliseconds in truth; the bound only catches a wait for something."""
    tracker = wandb_tracker(tmp_path, [], mode="offline")
    try:
        tracker.start_cell("cell-a", {})
        start = time.monotonic()
        for concurrency in range(20):
            tracker.log_point(row(concurrency, duration_s=1.0))
        assert time.monotonic() - start < 60
    finally:
        tracker.close()
    assert len(stored_runs(tmp_path / "exp")["cell-a"].points) == 20


def test_none_and_disabled_track_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = make_tracker(TrackerConfig(kind=TrackerKind.none), experiment="exp", results_dir=tmp_path)
    assert isinstance(none, NullTracker)
    none.start_cell("a", {})
    none.log_point(row(1))
    none.finish_cell()
    none.log_figures([], [])
    none.close()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert isinstance(wandb_tracker(tmp_path, []), NullTracker)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "env", "key", "expected"),
    [
        ("auto", None, False, "offline"),
        ("auto", None, True, "online"),
        ("auto", "offline", True, "offline"),
        ("auto", "dryrun", True, "offline"),
        ("auto", "online", True, "online"),
        ("auto", "disabled", True, "disabled"),
        ("offline", "online", True, "offline"),
        ("online", "disabled", True, "online"),
    ],
)
def test_modes(mode: str, env: str | None, key: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if env is not None:
        monkeypatch.setenv("WANDB_MODE", env)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert resolve_mode(mode) == expected


def test_modes_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"tracker\.mode='on' is unknown; choose one of auto, online, offline"):
        resolve_mode("on")
    with pytest.raises(ValueError, match="needs a key"):
        resolve_mode("online")
    monkeypatch.setenv("WANDB_MODE", "perhaps")
    with pytest.raises(ValueError, match="WANDB_MODE='perhaps' is unknown"):
        resolve_mode("auto")


@pytest.mark.parametrize(
    ("machine", "base_url", "found"),
    [
        ("api.wandb.ai", None, True),
        ("api.forge.coreweave.com", None, True),
        ("example.org", None, False),
        ("wandb.example.org:8080", "http://wandb.example.org:8080", True),
        ("api.wandb.ai", "http://wandb.example.org:8080", False),
    ],
)
def test_a_key_in_netrc(
    machine: str, base_url: str | None, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not tracking.has_key()
    (tmp_path / "netrc").write_text(f"machine {machine}\n  login user\n  password {KEY}\n")
    (tmp_path / "netrc").chmod(0o600)
    if base_url:
        monkeypatch.setenv("WANDB_BASE_URL", base_url)
    assert tracking.has_key() is found


def test_a_broken_netrc_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine\n")
    assert not tracking.has_key()
