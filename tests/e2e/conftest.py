"""Runs of the product for the end-to-end tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sweep_process import SMALL, Finished, Start, SweepProcess, assert_nothing_left


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a run: start("offload=full_kv", ...); `name=` tells several runs of a test apart (same results)."""
    runs: list[SweepProcess] = []

    def begin(*overrides: str, name: str = "run", base: Sequence[str] = SMALL, **how: Any) -> SweepProcess:
        results = f"results_dir={tmp_path / 'results'}"
        runs.append(SweepProcess(tmp_path / name, [*base, results, *overrides], **how))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill_all()


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The experiment's folder of the runs that `start` starts."""
    return tmp_path / "results" / "quickstart"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """Read only: a test that goes on with it copies the folder."""
    home = tmp_path_factory.mktemp("finished")
    overrides = (*SMALL, "offload=full_kv,hisparse_sync")
    # a RAY_ADDRESS of somebody's cluster must not disturb a local run
    run = SweepProcess(home, [*overrides, f"results_dir={home / 'results'}"], env={"RAY_ADDRESS": "127.0.0.1:1"})
    try:
        code = run.end()
        assert code == 0, run.said()
        assert_nothing_left(run)
        yield Finished(run, home / "results" / "quickstart", overrides)
    finally:
        run.kill_all()


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that finds what we require, but not us: an environment of its own beside the tests' one."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # named by a .pth file, a folder is searched, but its own .pth files, such as our editable install, are not read
    (site / "requirements.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = str(folder / "bin" / "python")
    done = subprocess.run([python, "-c", "import ray, torch; import harness"], cwd="/", capture_output=True, text=True)
    assert "No module named 'harness'" in done.stderr
    return python
