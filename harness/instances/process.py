"""A server as a child process: started, watched, read and ended, whatever happens to us."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from harness.instances.base import InstanceError

LOG_TAIL_CHARS = 2000


class ServerProcess:
    """One child in a process group of its own, its output in a log file.

    The child's standard input is a pipe that only we hold: a server told to end when it closes also ends
    when we are killed.
    """

    def __init__(self, command: list[str], log: Path, env: dict[str, str] | None = None):
        self.log = log
        self._output = log.open("wb")
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=os.environ | (env or {}),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Poll until ready. Raises InstanceError with the log's end when the child exits or time runs out."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise InstanceError(f"the server was not ready within {timeout_s:.0f} s{self._tail()}")
            time.sleep(0.05)

    def check(self) -> None:
        code = self._child.poll()
        if code is not None:
            raise InstanceError(f"the server ended with exit code {code}{self._tail()}")

    def read_log(self, offset: int) -> tuple[str, int]:
        with self.log.open("rb") as file:
            file.seek(offset)
            data = file.read()
        return data.decode(errors="replace"), offset + len(data)

    def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM to the whole group, SIGKILL to what is left after the grace time."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # it had its time; the group is killed next
            self._child.wait(grace_s)
        self._signal(signal.SIGKILL)
        self._child.wait()
        if self._child.stdin:
            self._child.stdin.close()
        self._output.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(self._child.pid, number)

    def _tail(self) -> str:
        lines = [line for line in self.read_log(0)[0][-LOG_TAIL_CHARS:].splitlines() if line.strip()]
        return f": {lines[-1].strip()}" if lines else ""
