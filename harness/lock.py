"""One driver at a time writes into an experiment's folder; a lock that ends with whoever holds it.

The folder's `.lock` is held by flock(2), which the kernel lets go when the holder dies, however it dies. It says who
holds it: host, pid, since when. A thread of the holder touches it every few seconds (the heartbeat), because on a
network file system the kernel of a dead host lets go of nothing, and some (Lustre without `-o flock`) do not carry
flock across hosts at all. There the heartbeat decides: a holder on another host whose heartbeat is fresh is alive; one
whose heartbeat has stopped is taken over at once where flock is free, and on request (`break_lock=true`) where it
is not. A driver that was taken over finds out before its next write (`Lock.check`) and stops.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

import psutil

from harness.sysinfo import boot_id
from harness.validate import ConfigError

NAME = ".lock"
HEARTBEAT_S = 5.0
DEAD_AFTER_S = 60.0
SETTLE_S = 1.0  # without flock: how long after its own claim a driver looks whether another's came later
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)  # what file systems answer without flock


class Busy(RuntimeError):
    """Another driver writes to the same results folder, or has taken it over. The message is one line."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a folder, as its lock file says."""

    token: str
    host: str
    boot: str  # of the machine: with it, `pid` means something
    pid: int
    started: float  # of that process, seconds since the epoch: pids are given again
    since: str

    @property
    def is_here(self) -> bool:
        return self.boot == _machine()

    @property
    def lives(self) -> bool:
        """Whether its process runs; only for a holder on this machine."""
        with suppress(psutil.Error):
            return abs(psutil.Process(self.pid).create_time() - self.started) < 1.0
        return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@dataclass(slots=True)
class Lock:
    """A folder held for writing."""

    path: Path
    holder: Holder

    def check(self) -> None:
        """Raise Busy when another driver has taken the folder over: nothing may be written then."""
        now = _read(self.path)
        if now is not None and now.token != self.holder.token:
            raise Busy(f"{self.path.parent} was taken over by {now}: this run stops")


@contextmanager
def results_lock(folder: Path, break_lock: bool = False) -> Iterator[Lock]:
    """Hold a folder for writing; it is made where it is missing.

    break_lock: take it from a holder on another host whose heartbeat has stopped, though flock says it is held.
    Raises Busy naming who holds it, ConfigError where it cannot be written.
    """
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file, works = _acquire(path, break_lock)
    except OSError as error:
        raise ConfigError(f"results_dir={folder.parent}: {error.strerror}: choose a folder to write to") from error
    with file:
        _refuse_if_alive(path, flock_works=works)
        lock = Lock(path, _me())
        _claim(file, lock.holder)
        if not works:
            time.sleep(SETTLE_S)
            lock.check()
        ended = threading.Event()
        heart = threading.Thread(target=_beat, args=(file.fileno(), ended), daemon=True, name="results-lock")
        heart.start()
        try:
            yield lock
        finally:
            ended.set()
            heart.join()
            if _read(path) == lock.holder:
                file.truncate(0)  # left in order: the next one need not ask whether we live


def _acquire(path: Path, break_lock: bool) -> tuple[IO[bytes], bool]:
    """The lock file, open, and whether flock holds it (False: this file system has none)."""
    while True:
        file = path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            _break_or_refuse(path, break_lock, error)
            continue
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return file, False
            file.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file, True
        file.close()  # somebody broke this lock between our open and our flock: the file that is there now counts


def _break_or_refuse(path: Path, break_lock: bool, error: BlockingIOError) -> None:
    """flock is held. Removes the lock file of a holder that may be broken; else raises Busy."""
    holder = _read(path)
    if holder is None:
        raise Busy(f"{path.parent} is being written by another process, which has just begun") from error
    age = _age_s(path)
    if holder.is_here or age < DEAD_AFTER_S:
        raise Busy(_refusal(path, holder, "wait for it, or give this run another name=NAME")) from error
    if not break_lock:
        hint = f"it has not been heard of for {age:.0f} s: if that host is dead, add break_lock=true"
        raise Busy(_refusal(path, holder, hint)) from error
    path.unlink(missing_ok=True)


def _refuse_if_alive(path: Path, *, flock_works: bool) -> None:
    """flock is ours, or there is none. Raises Busy where the one named in the file may be alive all the same."""
    holder = _read(path)
    if holder is None or (holder.is_here and (flock_works or not holder.lives)):
        return
    age = _age_s(path)
    if holder.is_here or age < DEAD_AFTER_S:
        left = DEAD_AFTER_S - age
        hint = f"it was heard of {age:.0f} s ago; if that host is dead, the same command goes on in {left:.0f} s"
        if holder.is_here:
            hint = "wait for it, or give this run another name=NAME"
        raise Busy(_refusal(path, holder, hint))


def _refusal(path: Path, holder: Holder, hint: str) -> str:
    return f"{path.parent} is being written by {holder}: {hint}"


def _me() -> Holder:
    process = psutil.Process()
    return Holder(
        token=uuid.uuid4().hex,
        host=platform.node(),
        boot=_machine(),
        pid=process.pid,
        started=process.create_time(),
        since=datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    )


def _machine() -> str:
    """What only those share who see the same process numbers: the machine, and on it the container."""
    try:
        return f"{boot_id().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no /proc
        return boot_id()


def _claim(file: IO[bytes], holder: Holder) -> None:
    file.truncate(0)
    file.write(json.dumps(asdict(holder)).encode())
    file.flush()


def _read(path: Path) -> Holder | None:
    """Who the file names; None where it names nobody (left in order), or nobody any more."""
    try:
        return Holder(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _age_s(path: Path) -> float:
    """Seconds since the last heartbeat, by the clock of the file system: hosts' clocks may differ."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".now.") as now:
            return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime
    except OSError:  # it is full
        return time.time() - path.stat().st_mtime


def _beat(descriptor: int, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT_S):
        with suppress(OSError):  # a server that does not answer for a while: the next beat
            os.utime(descriptor)
