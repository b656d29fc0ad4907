"""Our own engine's server as an instance."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from harness.instances.base import InstanceError
from harness.instances.process import ServerProcess
from harness.records import ServerStats
from harness.schema import Config, to_yaml
from harness.sysinfo import machine

HTTP_TIMEOUT_S = 15.0


class NativeInstance:
    """`python -m harness.engine.server` in a child process, in this process's interpreter."""

    def __init__(self, config: Config):
        self._config = config
        self._folder: Path | None = None
        self._process: ServerProcess | None = None
        self._url = ""

    def start(self) -> str:
        self._folder = Path(tempfile.mkdtemp(prefix="hisparse-instance-"))
        config_file, ready = self._folder / "config.yaml", self._folder / "ready.json"
        config_file.write_text(to_yaml(self._config))
        threads = str(max(1, int(self._config.platform.num_cpus)))
        self._process = ServerProcess(
            [
                *(sys.executable, "-m", "harness.engine.server"),
                *("--config", str(config_file), "--ready-file", str(ready), "--exit-with-stdin"),
            ],
            self._folder / "server.log",
            # Ray sets it for its workers; idle threads of OpenMP must not spin on cores the client needs
            env={"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"},
        )
        try:
            self._process.wait_ready(ready.exists, self._config.engine.start_timeout_s)
        except BaseException:
            self.stop()
            raise
        self._url = json.loads(ready.read_text())["url"]
        return self._url

    def check(self) -> None:
        self._running().check()
        self._get("/health")

    def flush(self) -> None:
        self._get("/flush_cache")

    def stats(self) -> ServerStats:
        return ServerStats(**self._get("/server_info")["stats"])

    def read_log(self, offset: int) -> tuple[str, int]:
        return self._running().read_log(offset)

    def describe(self) -> dict[str, Any]:
        return {"machine": machine(), "server": self._get("/server_info"), "server_pid": self._running().pid}

    def stop(self) -> None:
        if self._process:
            self._process.stop()
            self._process = None
        if self._folder:
            shutil.rmtree(self._folder)
            self._folder = None

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise InstanceError("the server is not running")
        return self._process

    def _get(self, path: str) -> dict[str, Any]:
        self._running().check()
        try:
            with urllib.request.urlopen(self._url + path, timeout=HTTP_TIMEOUT_S) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as error:
            raise InstanceError(f"{path} answered {error.code}: {error.read().decode()[:300]}") from error
        except (OSError, ValueError) as error:
            raise InstanceError(f"{path} did not answer: {error}") from error
