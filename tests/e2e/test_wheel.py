"""The installed package: no checkout, another directory, another Python environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sweep_process import HANG_S, Start, SweepProcess, assert_nothing_left

from harness.store import read_env, read_rows

ROOT = Path(__file__).resolve().parents[2]
_WHERE = "import analysis, harness, hisparse_kernels, workloads as w; "
_WHERE += "print(*(m.__file__ for m in (analysis, harness, hisparse_kernels, w)), sep='\\n')"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel is unpacked into, for PYTHONPATH."""
    built, target = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("installed")
    for command in (
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)],
        [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(target)],
    ):
        wheels = [str(path) for path in built.glob("*.whl")]
        done = subprocess.run([*command, *wheels], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_the_wheel_runs_from_any_directory(installed: Path, bare_python: str, start: Start, results: Path) -> None:
    """`bare_python` has our requirements but not us, so that what runs can only be the wheel's."""
    how = {"python": bare_python, "env": {"PYTHONPATH": str(installed)}}
    found = subprocess.run([bare_python, "-c", _WHERE], env=how["env"], cwd="/", capture_output=True, text=True)
    assert found.stdout.count(str(installed)) == 4, found.stderr
    dry = start("dry_run=true", name="dry", **how)
    assert dry.end() == 0, dry.said()
    assert not results.exists()

    run = start("offload=hisparse_sync", "load.concurrencies=[1]", "tracker=none", name="run", **how)
    assert run.end() == 0, run.said()
    assert_nothing_left(run)
    rows = read_rows(results)
    assert list(rows["status"]) == ["ok"]
    env = read_env(Path(rows["point_path"][0]))
    machines = [env["driver"], env["loadgen"]["machine"], env["instance"]["machine"]]
    assert [machine["git_commit"] for machine in machines] == [None] * 3  # of no checkout

    page = results / "figures" / "report.html"
    page.unlink()
    drawn = SweepProcess(results.parent / "analysis", [str(results)], module="analysis", **how)
    try:
        assert drawn.end() == 0, drawn.said()
        assert page.is_file()
    finally:
        drawn.kill_all()
