"""Runs a command and ends everything it started: python keeper.py GRACE_S COMMAND...

For servers that start processes of their own and do not watch for our end. It ends them when the command has ended,
on SIGTERM, and when its standard input closes, which is when whoever started it is gone. Orphans of the command's
processes become children of this one (PR_SET_CHILD_SUBREAPER, prctl(2)), also those that left its session. It imports
the standard library alone: it is run as a file, by any interpreter.

It is two processes, each of which ends the command's should the other be killed: Ray kills the children of a worker
that ends, and so the first; the kernel, short of memory, may kill either.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.1
_prctl = ctypes.CDLL(None).prctl


class _Asked(Exception):
    """SIGTERM came."""


def main(grace_s: float, command: list[str]) -> int:
    """The command's exit code; that of SIGTERM when it was ended, and 128 + n for signal n, as shells say it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until each has its handler
    second = os.fork()
    if second:
        return _stand_by(second)
    os.setpgid(0, 0)  # whoever started us may kill the group of the first
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # is not inherited
    return _run(grace_s, command)


def _stand_by(second: int) -> int:
    """Pass SIGTERM on; end what the second process leaves."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(second, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    code = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _kill_all()
    return code if code >= 0 else 128 - code


def _run(grace_s: float, command: list[str]) -> int:
    code: int | None = None
    signal.signal(signal.SIGTERM, _on_sigterm)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        code = _wait(child.pid)
    except _Asked:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if code is None:
            _end(child.pid, grace_s)
        _kill_all()
    return 128 + signal.SIGTERM if code is None else code


def _on_sigterm(number: int, frame: object) -> None:
    raise _Asked


def _die_with_parent() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait(pid: int) -> int | None:
    """The command's exit code, None when our standard input closes before."""
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    while True:
        code = _reap(pid)
        if code is not None:
            return code
        if poll.poll(_POLL_S * 1e3) and not os.read(0, 4096):
            return None


def _end(pid: int, grace_s: float) -> None:
    """SIGTERM to the command, and time to end in order."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    with suppress(ChildProcessError):
        while _reap(pid) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S / 4)


def _reap(pid: int) -> int | None:
    """Collect children that have ended; the exit code of `pid` when it is one of them.

    Raises ChildProcessError when no child is left.
    """
    found = None
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            return found
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _kill_all() -> None:
    """SIGKILL to everything below us, until nothing is."""
    with suppress(ChildProcessError):
        while True:
            for pid in _below(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_POLL_S / 10)


def _below(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    found, wave = [], {root}
    while wave:
        wave = {pid for pid, parent in parents.items() if parent in wave}
        found += sorted(wave)
    return found


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
