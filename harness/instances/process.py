"""A server as a child process: started, watched, read and ended, whatever happens to us."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from harness.instances.base import InstanceError

LOG_TAIL_CHARS = 2000


class ServerProcess:
    """One child in a session of its own, its output in a file without a name, so that nothing stays behind.

    The child's standard input is a pipe that only we hold: a server told to end when it closes also ends
    when we are killed. It finds Python modules where this process does, unless it has an interpreter of its own.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        own_interpreter: bool = False,
    ):
        self._stopped = False
        self._ending = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # open for as long as someone may read it
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=_environment(own_interpreter) | dict(env or {}),
            pass_fds=pass_fds,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Poll until ready. Raises InstanceError with the log's last line when the child exits or time runs out."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise InstanceError(f"the server was not ready within {timeout_s:g} s{self._tail()}")
            time.sleep(0.02)

    def check(self, within_s: float = 0.0) -> None:
        """Raise InstanceError if the child has ended, or does so within the time."""
        with suppress(subprocess.TimeoutExpired):  # it runs
            code = self._child.wait(within_s)
            told = self._tail()
            # SIGKILL comes from outside: from the kernel short of memory, or from somebody. A port may be free again.
            killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)  # the latter is how `keeper` says it
            raise InstanceError(f"the server ended with exit code {code}{told}", may_pass=killed or port_taken(told))

    @property
    def log_size(self) -> int:
        """Bytes it wrote so far."""
        return os.fstat(self._log.fileno()).st_size

    def read_log(self, offset: int) -> tuple[str, int]:
        """What it wrote from byte `offset` on, and the offset after it; also after its end."""
        data = os.pread(self._log.fileno(), max(0, self.log_size - offset), offset)  # leaves the child's place alone
        return data.decode(errors="replace"), offset + len(data)

    def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM to the whole group, SIGKILL to what is left after the grace time. Idempotent; several threads may."""
        with self._ending:
            if self._stopped:  # its number may be another process's by now
                return
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):  # it had its time; the group is killed next
                self._child.wait(grace_s)
            self._signal(signal.SIGKILL)
            self._child.wait()
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._stopped = True

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(self._child.pid, number)

    def _tail(self) -> str:
        lines = [line for line in self.read_log(0)[0][-LOG_TAIL_CHARS:].splitlines() if line.strip()]
        return f": {lines[-1].strip()}" if lines else ""


def port_taken(said: str) -> bool:
    """Whether a server's last words are that its port is another's, as the system says it or as SGLang does."""
    return any(
        words in said.lower() for words in (os.strerror(errno.EADDRINUSE).lower(), "is used by a process already")
    )


def _environment(own_interpreter: bool) -> dict[str, str]:
    """Ours, with our module path; or without anything by which one Python tells another where its modules are."""
    if own_interpreter:
        return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
