"""What servers of our own have in common, whatever they run: a process that is asked over HTTP, flushed and ended."""

from __future__ import annotations

import time

from harness.instances.base import InstanceError
from harness.instances.process import ServerProcess
from harness.instances.wire import TIMEOUT_S, Refused, fetch

FLUSH_PATIENCE_S = 10.0


class OwnServer:
    """The part of an `Instance` that any server of ours shares; a subclass starts `_process` and says where it is."""

    end_grace_s = 5.0  # from the request to end to SIGKILL

    def __init__(self) -> None:
        self._process: ServerProcess | None = None
        self._url = ""  # where this node reaches it

    def flush(self) -> None:
        """A client that gave up is noticed a moment later: its requests get a few seconds to go."""
        deadline = time.monotonic() + FLUSH_PATIENCE_S
        while True:
            try:
                self._fetch("/flush_cache")
                return
            except Refused:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def read_log(self, offset: int) -> tuple[str, int]:
        return self._process.read_log(offset) if self._process else ("", offset)

    def stop(self) -> None:
        if self._process:
            self._process.stop(grace_s=self.end_grace_s)

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise InstanceError("the server was not started")
        return self._process

    def _fetch(self, path: str, timeout_s: float = TIMEOUT_S) -> bytes:
        """What `path` answers; the server's end is said as what it is and not as a lost connection."""
        self._running().check()
        try:
            return fetch(self._url + path, timeout_s)
        except Refused:
            raise
        except InstanceError:
            self._running().check(within_s=1.0)  # a dying server first drops its connections
            raise
