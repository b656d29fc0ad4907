"""Our own engine's server as an instance."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from harness.instances.base import ALONE, InstanceError, Place
from harness.instances.own_server import OwnServer
from harness.instances.process import ServerProcess
from harness.records import ServerStats
from harness.schema import Config, to_yaml
from harness.sysinfo import own_machine

TRACE_TIMEOUT_S = 900.0  # coding a trace takes about 0.3 ms a selection


class NativeInstance(OwnServer):
    """`python -m harness.engine.server` in a child process, in this process's interpreter.

    Config and readiness go through open files, not through a folder that a killed process would leave behind.
    """

    def __init__(self, config: Config):
        super().__init__()
        self._config = config

    def start(self, place: Place = ALONE) -> str:
        assert place.num_nodes == 1, "the native engine computes on one node"
        ready, told = os.pipe()
        os.set_blocking(ready, False)
        try:
            with tempfile.TemporaryFile() as config_file:
                config_file.write(to_yaml(self._config).encode())
                config_file.seek(0)
                try:
                    self._process = self._launch(config_file.fileno(), told)
                finally:
                    os.close(told)
            self._url = self._wait_until_told(self._process, ready)
        finally:
            os.close(ready)
        return self._url

    def check(self) -> None:
        self._running().check()
        self._get("/health")

    def stats(self) -> ServerStats:
        return ServerStats(**self._get("/server_info")["stats"])

    def selection_trace(self) -> bytes:
        """The trace of what was selected since the last flush (`trace.record`), as a file's bytes."""
        return self._fetch("/selection_trace", TRACE_TIMEOUT_S)

    def describe(self) -> dict[str, Any]:
        return {"machine": own_machine(), "server": self._get("/server_info"), "server_pid": self._running().pid}

    def _launch(self, config_fd: int, ready_fd: int) -> ServerProcess:
        threads = str(max(1, int(self._config.platform.num_cpus)))
        return ServerProcess(
            [
                *(sys.executable, "-P", "-m", "harness.engine.server", "--exit-with-stdin"),
                *("--config", f"/dev/fd/{config_fd}", "--ready-file", f"/dev/fd/{ready_fd}"),
            ],
            # Ray sets it for its workers; idle threads of OpenMP must not spin on cores the client needs
            env={"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"},
            pass_fds=(config_fd, ready_fd),
        )

    def _wait_until_told(self, process: ServerProcess, ready: int) -> str:
        said = b""

        def is_ready() -> bool:
            nonlocal said
            try:
                said = os.read(ready, 4096)
            except BlockingIOError:  # nothing written yet
                return False
            return bool(said)  # empty: it closed the pipe, so it has ended

        try:
            process.wait_ready(is_ready, self._config.engine.start_timeout_s)
        except BaseException:
            process.stop()
            raise
        return str(json.loads(said)["url"])

    def _get(self, path: str) -> dict[str, Any]:
        try:
            return dict(json.loads(self._fetch(path)))
        except ValueError as error:
            raise InstanceError(f"{path} did not answer: {error}") from error
