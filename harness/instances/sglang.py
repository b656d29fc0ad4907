"""SGLang's server as an instance: started in the interpreter the config names, watched, read and ended.

On each node of an instance that spans several runs one process group; only the first node's listens.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.instances import keeper
from harness.instances.base import ALONE, InstanceError, Place, own_address
from harness.instances.own_server import OwnServer
from harness.instances.process import ServerProcess, port_taken
from harness.instances.sglang_command import launch
from harness.instances.sglang_folder import write_config_folder
from harness.instances.sglang_log import is_fatal, is_own_fault, reason
from harness.instances.sglang_metrics import Scrape, server_stats
from harness.instances.wire import TIMEOUT_S, Refused, fetch, fetch_json
from harness.records import ServerStats
from harness.schema import Config
from harness.sysinfo import own_machine

HEALTH_EVERY_S = 0.5
SILENCE_S = 900.0  # a start that logs nothing for this long has hung, whatever `engine.start_timeout_s` says
LAST_WORDS_S = 2.0  # from a fatal line to the end of its traceback
END_GRACE_S = 5.0
INFO_TIMEOUT_S = 60.0  # /server_info asks every scheduler
_SECRET = ("key", "password", "token_file")


class SGLangInstance(OwnServer):
    """`python -m sglang.launch_server` under `keeper`, which ends whatever it started, whatever happens to us."""

    end_grace_s = 2 * END_GRACE_S  # `keeper` takes the first half to end the server

    def __init__(self, config: Config):
        super().__init__()
        self._config = config
        self._version = ""
        self._flushed_at = 0  # offset in the log
        self._watch: StartWatch | None = None  # on other nodes than the first, where nothing but the log can be asked

    def start(self, place: Place = ALONE) -> str:
        python = interpreter(self._config.engine.python)
        if self._config.model.weights == "random":
            try:
                write_config_folder(self._config)
            except OSError as error:
                raise InstanceError(f"the config of random weights cannot be written: {error}") from error
        port = self._config.engine.port or free_port()
        command = launch(self._config, place, port)
        self._process = ServerProcess(
            [sys.executable, "-I", "-S", keeper.__file__, str(END_GRACE_S), python, *command.arguments],
            env={"PYTHONUNBUFFERED": "1", **command.env},
            own_interpreter=True,
        )
        if place.node_rank:
            self._watch = StartWatch(float("inf"), LAST_WORDS_S, "the server cannot go on")
            return ""
        outside, self._url = urls(self._config.engine.host, port)
        self._wait_healthy(self._process)
        return outside

    def check(self) -> None:
        with _explained(self):
            self._running().check()
            if self._watch:
                self._watch.look(self._running().read_log(self._watch.offset))

    def flush(self) -> None:
        super().flush()
        self._flushed_at = self._running().log_size

    def stats(self) -> ServerStats:
        text = self._fetch("/metrics").decode(errors="replace")
        log = self._running().read_log(self._flushed_at)[0]
        try:
            return server_stats(Scrape(text), log, self._config, self._version)
        except ValueError as error:
            raise InstanceError(f"/metrics cannot be read: {error}") from error

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = {"machine": own_machine(), "server_pid": self._running().pid}
        if self._url:
            text = self._fetch("/metrics").decode(errors="replace")
            info = fetch_json(self._url + "/server_info", INFO_TIMEOUT_S)
            found["server"] = {"name": "sglang", **shown(info), "gauges": Scrape(text).gauges()}
        return found

    def _wait_healthy(self, process: ServerProcess) -> None:
        watch = StartWatch()
        due = 0.0

        def is_healthy() -> bool:
            nonlocal due
            watch.look(process.read_log(watch.offset))
            if time.monotonic() < due:
                return False
            due = time.monotonic() + HEALTH_EVERY_S
            try:
                fetch(self._url + "/health", timeout_s=5.0)
            except InstanceError:  # not yet
                return False
            return True

        try:
            with _explained(self):
                process.wait_ready(is_healthy, self._config.engine.start_timeout_s)
            info = fetch_json(self._url + "/server_info", INFO_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        self._version = f"sglang {info.get('version') or 'of unknown version'}"

    def _fetch(self, path: str, timeout_s: float = TIMEOUT_S) -> bytes:
        with _explained(self):
            return super()._fetch(path, timeout_s)


class StartWatch:
    """Follows the log of a start, and raises where it will come to nothing."""

    def __init__(
        self,
        silence_s: float = SILENCE_S,
        last_words_s: float = LAST_WORDS_S,
        verdict: str = "the server cannot start",
    ):
        self._silence_s, self._last_words_s, self._verdict = silence_s, last_words_s, verdict
        self._grew_at, self._fatal_at = time.monotonic(), 0.0
        self.offset = 0

    def look(self, read: tuple[str, int]) -> None:
        """Take what was logged since `offset`. Raises InstanceError."""
        text, offset = read
        now = time.monotonic()
        if offset > self.offset:
            self._grew_at = now
        self.offset = offset
        if is_fatal(text) and not self._fatal_at:
            self._fatal_at = now
        if self._fatal_at and now > self._fatal_at + self._last_words_s:
            raise InstanceError(self._verdict)
        if now > self._grew_at + self._silence_s:
            raise InstanceError(f"the server logged nothing for {self._silence_s:g} s and was not ready")


class _explained:
    """InstanceErrors of the body, with what the log says of the cause in place of its last line."""

    def __init__(self, instance: SGLangInstance):
        self._instance = instance

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, InstanceError) or isinstance(error, Refused):
            return
        process = self._instance._process
        log = process.read_log(0)[0] if process else ""
        why = reason(log)
        if why:
            passing = (error.may_pass or is_fatal(log)) and not is_own_fault(log, why)
            may_pass = passing or port_taken(why)
            raise InstanceError(f"{str(error).partition(': ')[0]}: {why}", may_pass=may_pass) from error


def interpreter(named: str | None) -> str:
    """The Python to run SGLang with. Raises InstanceError where it has none, with what to do."""
    fix = (
        "make a virtual environment of its own with pip install 'hisparse-harness[sglang]', or pip install sglang, "
        "and set engine.python=THERE/bin/python"
    )
    if named is None:
        found = importlib.util.find_spec("sglang")
        if found is None or found.origin is None:  # None: a folder of that name, and no package
            raise InstanceError(f"engine=sglang: this Python has no sglang: {fix}")
        return sys.executable
    path = shutil.which(str(Path(named).expanduser()))
    if path is None:
        raise InstanceError(f"engine.python={named} on {socket.gethostname()}: no such program: {fix}")
    asked = [path, "-I", "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"]
    if subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=60.0).returncode:
        raise InstanceError(f"engine.python={named} on {socket.gethostname()} has no sglang: {fix}")
    return path


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def urls(host: str, port: int) -> tuple[str, str]:
    """Where others reach a server that listens on `host`, and where we do."""
    anywhere = host in ("0.0.0.0", "::", "")
    outside = own_address() if anywhere else host
    inside = "127.0.0.1" if anywhere else host
    return tuple(f"http://[{h}]:{port}" if ":" in h else f"http://{h}:{port}" for h in (outside, inside))  # type: ignore[return-value]


def shown(info: dict[str, Any]) -> dict[str, Any]:
    """What of /server_info goes to env.json: settings that are set, nothing secret, the state of the first rank."""
    states = info.get("internal_states") or [{}]
    kept = {
        name: value
        for name, value in info.items()
        if name != "internal_states"
        and value not in (None, False, "", [], {})
        and not any(word in name for word in _SECRET)
    }
    memory = {name: states[0].get(name) for name in ("memory_usage", "effective_max_running_requests_per_dp")}
    return kept | {name: value for name, value in memory.items() if value is not None}
