"""The lock of a results folder: who holds it, who may take it, what becomes of it when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness import lock
from harness.lock import Busy, Holder, results_lock
from harness.validate import ConfigError

HOLD = """
import sys, time
from pathlib import Path
from harness.lock import results_lock
with results_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(1000)
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.wait()


def test_a_second_driver_hears_who_holds_it_and_since_when(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "exp"
    with another_process(folder) as holder:
        host, since = os.uname().nodename, json.loads((folder / ".lock").read_bytes())["since"]
        assert abs(datetime.now().astimezone() - datetime.fromisoformat(since)) < timedelta(hours=1)
        said = f"exp is being written by process {holder.pid} on {host} since {since}"
        with (
            pytest.raises(Busy, match=re.escape(said)) as told,
            results_lock(folder),
        ):
            pass
        assert "\n" not in str(told.value)
        with pytest.raises(Busy), results_lock(folder, break_lock=True):  # never one that is alive
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        with results_lock(folder) as mine:  # at once: it died with its holder
            mine.check()
    assert (folder / ".lock").read_bytes() == b""


def test_the_same_folder_can_be_held_again_and_leaves_only_an_empty_file(tmp_path: Path) -> None:
    for _ in range(3):
        with results_lock(tmp_path):
            assert json.loads((tmp_path / ".lock").read_bytes())["pid"] == os.getpid()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose a folder to write to"), results_lock(tmp_path / "file" / "exp"):
        pass


# --- other hosts: what network file systems make of it ------------------------------------------------------------


def remote(folder: Path, silent_s: float, **changes: Any) -> Holder:
    """A lock file as a driver on another host left it, last touched so long ago."""
    holder = Holder(token="t", host="node7", boot="other", pid=11, started=1.0, since="2026-11-30 08:00:00+00:00")
    holder = replace(holder, **changes)
    path = folder / ".lock"
    path.write_text(json.dumps(asdict(holder)))
    os.utime(path, (time.time() - silent_s,) * 2)
    return holder


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """flock held by somebody else for the file's present inode, as an NFS server keeps it for a dead client."""
    files = []

    def hold(folder: Path) -> None:
        files.append((folder / ".lock").open("a"))
        fcntl.flock(files[-1], fcntl.LOCK_EX)

    yield hold
    for file in files:
        file.close()


def test_flock_that_does_not_reach_other_hosts_is_backed_by_the_heartbeat(tmp_path: Path) -> None:
    remote(tmp_path, silent_s=10)
    said = r"process 11 on node7 since .*heard of [1-5]\d s ago.* goes on in \d+ s"
    with pytest.raises(Busy, match=said), results_lock(tmp_path):
        pass
    remote(tmp_path, silent_s=lock.DEAD_AFTER_S + 1)
    with results_lock(tmp_path) as mine:
        assert mine.holder.pid == os.getpid()


def test_a_stale_lock_of_a_dead_host_is_named_and_broken_only_on_request(
    tmp_path: Path, held: Callable[[Path], None]
) -> None:
    remote(tmp_path, silent_s=500)
    held(tmp_path)
    said = r"process 11 on node7 .*not been heard of for 5\d\d s.*add break_lock=true"
    with pytest.raises(Busy, match=said), results_lock(tmp_path):
        pass
    mine = f"process {os.getpid()}"
    with results_lock(tmp_path, break_lock=True), pytest.raises(Busy, match=mine), results_lock(tmp_path, True):
        pass


def test_a_lock_with_a_heartbeat_is_not_broken(tmp_path: Path, held: Callable[[Path], None]) -> None:
    remote(tmp_path, silent_s=5)
    held(tmp_path)
    with pytest.raises(Busy, match="process 11 on node7"), results_lock(tmp_path, break_lock=True):
        pass


def test_a_driver_that_was_taken_over_stops_before_it_writes(tmp_path: Path) -> None:
    with results_lock(tmp_path) as mine:
        mine.check()
        (tmp_path / ".lock").unlink()
        theirs = remote(tmp_path, silent_s=0)
        with pytest.raises(Busy, match=f"was taken over by process 11 on node7 since {theirs.since[:10]}"):
            mine.check()
    assert json.loads((tmp_path / ".lock").read_text())["token"] == "t"  # not ours to clear


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_flock_the_file_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def none(*args: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", none)
    monkeypatch.setattr(lock, "SETTLE_S", 0.05)
    with results_lock(tmp_path) as mine:
        with pytest.raises(Busy, match=f"process {os.getpid()}"), results_lock(tmp_path):
            pass
        mine.check()
    gone = {"boot": mine.holder.boot, "pid": 2**22 + 1}
    remote(tmp_path, silent_s=0, **gone)  # of this machine, and no longer there
    with results_lock(tmp_path):
        pass
    remote(tmp_path, silent_s=1)
    with pytest.raises(Busy, match="node7"), results_lock(tmp_path):
        pass


def test_of_two_that_claim_at_once_without_flock_one_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: Any) -> None:
        raise OSError(errno.ENOSYS, "no flock")

    monkeypatch.setattr(fcntl, "flock", none)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: remote(tmp_path, silent_s=0))
    with pytest.raises(Busy, match="taken over by process 11"), results_lock(tmp_path):
        pass


def test_the_heartbeat_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    with results_lock(tmp_path):
        os.utime(tmp_path / ".lock", (0, 0))
        deadline = time.monotonic() + 200
        while (tmp_path / ".lock").stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
