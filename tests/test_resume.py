"""Going on after what went wrong: full disks, changed or copied folders, leftovers. In virtual time: no cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.draw import Drawn
from harness import __main__ as harness_main
from harness.lock import results_lock
from harness.store import read_rows

SMALL = ["experiment=plan", "tracker=none", "workload.output_len=8", "workload.input_len=512"]
CONCURRENCIES = "load.concurrencies=[1,2,3]"


@pytest.fixture(autouse=True, scope="module")
def _no_figures() -> Iterator[None]:
    """They take seconds, and none of these tests is about them."""

    def draw(folder: Path) -> Drawn:
        return Drawn([], folder / "figures" / "report.html", f"{len(read_rows(folder))} rows")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.draw.draw", draw)
        yield


def run(results: Path, *overrides: str) -> int:
    return harness_main.main([*SMALL, f"results_dir={results}", CONCURRENCIES, *overrides])


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1, err
    return err


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("*/c*-r*/*"))}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which fills up."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_ends_the_sweep_in_order_and_with_room_it_goes_on(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(small_disk) == 1
    assert "No space left on device; this point is not stored, those before it are" in one_error(capsys)
    stored = files(small_disk / "plan")
    rows = read_rows(small_disk / "plan")
    assert 0 < len(rows) < 6 and set(rows["status"]) == {"ok"}
    assert [path.name for path in (small_disk / "plan").glob("*/.*")] == []
    assert run(small_disk) == 1  # still full: the same line, nothing lost
    assert "No space left on device" in one_error(capsys)
    assert files(small_disk / "plan") == stored

    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    assert run(small_disk) == 0
    after = files(small_disk / "plan")
    assert {name: after[name] for name in stored} == stored
    assert run(tmp_path / "undisturbed") == 0
    columns = ["cell_id", "concurrency", "repeat", "status", "completed", "total_output_tokens", "output_throughput"]
    assert read_rows(small_disk / "plan")[columns].equals(read_rows(tmp_path / "undisturbed" / "plan")[columns])


def test_a_full_disk_for_the_figures_is_one_line_and_the_points_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path) -> Any:
        raise OSError(28, os.strerror(28), str(folder / "figures" / "overview.png"))

    monkeypatch.setattr("analysis.draw.draw", full)
    assert run(tmp_path) == 1
    assert one_error(capsys).endswith("overview.png: No space left on device; the points on disk are whole\n")
    assert len(read_rows(tmp_path / "plan")) == 6


@pytest.fixture(scope="module")
def finished(_no_figures: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("finished")
    assert run(results) == 0
    return results


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "results"))


def a_point(results: Path, system: str = "full_kv") -> Path:
    return min(results.glob(f"plan/{system}-*/c1-r0"))


def test_a_folder_measured_with_another_config_is_refused_and_says_what_differs(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = a_point(results) / "config.yaml"
    config.write_text(config.read_text().replace("output_len: 8\n", "output_len: 9\n"))
    before = files(results / "plan")
    assert run(results, "load.concurrencies=[1,7]") == 2
    said = one_error(capsys)
    assert f"{a_point(results)} was measured with another config (workload.output_len: 9 there, 8 here)" in said
    assert files(results / "plan") == before
    assert run(results, "offload=hisparse_sync") == 0  # cells that fit are not kept from going on


def test_what_does_not_define_a_cell_may_differ(results: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(results, tmp_path / "elsewhere"))
    config = a_point(moved) / "config.yaml"
    config.write_text(config.read_text().replace("description: ", "description: Other words. "))
    before = files(moved / "plan")
    assert run(moved) == 0
    assert files(moved / "plan") == before


@pytest.mark.parametrize("content", ["a: [", "- 1\n", None])
def test_a_config_that_cannot_be_read_is_refused(
    results: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    config = a_point(results) / "config.yaml"
    config.unlink() if content is None else config.write_text(content)
    assert run(results) == 2
    assert f"{config}: " in one_error(capsys)


def test_a_copied_folder_does_not_count_twice(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(a_point(results), a_point(results).with_name("c1-r1"))
    assert run(results) == 2
    assert f"c1-r1/result.json: cannot be read (it is the row of {a_point(results).parent.name}/c1-r0)" in one_error(
        capsys
    )


def test_a_changed_config_is_another_cell_beside_the_old_one(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, old = files(results / "plan"), a_point(results).parent.name
    assert run(results, "workload.seed=5", "offload=full_kv") == 0
    after = files(results / "plan")
    assert {name: after[name] for name in before} == before and len(after) == len(before) * 3 // 2
    out = " ".join(capsys.readouterr().out.split())
    assert f"full_kv: {old} on disk is another cell: workload.seed: 0 there, 5 here" in out


def test_leftovers_of_a_killed_driver_go_at_the_next_start_but_never_those_of_a_live_one(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leftover = a_point(results).with_name(".c9-r0.0123456789ab.partial")
    leftover.mkdir()
    (leftover / "config.yaml").write_text("half")
    with results_lock(results / "plan"):
        assert run(results) == 2
        assert f"is being written by process {os.getpid()} on " in one_error(capsys)
    assert leftover.is_dir()
    assert run(results) == 0
    assert not leftover.exists()
