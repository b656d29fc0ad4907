"""Whatever a command started, and however it left, is ended with it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from harness.instances import keeper

BUSY = """
import os, subprocess, sys, time
if os.fork() == 0:            # a daemon: another session, its parent gone
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + "/daemon", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
child = subprocess.Popen(["sleep", "600"])
open(sys.argv[1] + "/child", "w").write(str(child.pid))
while not os.path.exists(sys.argv[1] + "/end"):
    time.sleep(0.05)
sys.exit(7)
"""


def keep(folder: Path, code: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(code), str(folder)]
    runner = [sys.executable, "-I", "-S", keeper.__file__, "1.0"]
    return subprocess.Popen([*runner, *command], stdin=subprocess.PIPE, start_new_session=True)


def started(folder: Path) -> list[psutil.Process]:
    deadline = time.monotonic() + 30
    while not all((folder / name).is_file() and (folder / name).read_text() for name in ("daemon", "child")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [psutil.Process(int((folder / name).read_text())) for name in ("daemon", "child")]


def assert_gone(processes: list[psutil.Process]) -> None:
    gone, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive and len(gone) == 2


@pytest.mark.parametrize("how", ["sigterm", "stdin", "by itself"])
def test_nothing_stays(how: str, tmp_path: Path) -> None:
    kept = keep(tmp_path, BUSY)
    try:
        processes = started(tmp_path)
        assert kept.stdin is not None
        if how == "sigterm":
            kept.terminate()
        elif how == "stdin":
            kept.stdin.close()
        else:
            (tmp_path / "end").touch()
        assert kept.wait(60) == (7 if how == "by itself" else 143)
        assert_gone(processes)
    finally:
        kept.kill()
        kept.wait()


def test_one_that_ignores_sigterm_has_its_grace_and_no_more(tmp_path: Path) -> None:
    code = "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN)\n" + textwrap.dedent(BUSY)
    kept = keep(tmp_path, code)
    try:
        processes = started(tmp_path)
        begin = time.monotonic()
        kept.terminate()
        assert kept.wait(60) == 143
        assert time.monotonic() - begin >= 1.0
        assert_gone(processes)
    finally:
        kept.kill()
        kept.wait()


def test_a_signal_is_said_as_shells_say_it(tmp_path: Path) -> None:
    kept = keep(tmp_path, "import os; os.kill(os.getpid(), 11)")
    assert kept.wait(60) == 128 + 11


@pytest.mark.parametrize("which", ["first", "second"])
def test_one_of_its_two_processes_may_be_killed(which: str, tmp_path: Path) -> None:
    kept = keep(tmp_path, BUSY)
    try:
        processes = started(tmp_path)
        (second,) = psutil.Process(kept.pid).children()
        if which == "first":  # as Ray does with the children of a worker that ends; its pipes close then
            kept.kill()
            assert kept.stdin is not None
            kept.stdin.close()
            second.wait(60)
        else:
            second.kill()
            assert kept.wait(60) == 128 + 9
        assert_gone(processes)
    finally:
        kept.kill()
        kept.wait()
