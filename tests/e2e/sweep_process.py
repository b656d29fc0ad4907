"""Running the product as a user does, and watching every process that comes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

MARK = "HISPARSE_E2E_RUN"
SERVER = "harness.engine.server"
POLL_S = 0.2
HANG_S = 400.0  # of whatever is waited for; a busy machine may take it all, a hang takes longer
ENDED_S = 45.0  # from a run's end to that of all its processes; Ray's helpers end by themselves after a minute
# these runs share their cores with other tests: how late the load generator ran is not what they are about
PATIENT = ("load.max_lag_p99_ms=5000", "load.max_lag_share=100", "load.max_cpu_share=100")
SMALL = (
    "experiment=quickstart",
    "workload.input_len=64",
    "workload.output_len=60",  # long enough for all of a point to meet, however slowly they are sent
    "load.concurrencies=[1,4]",
)


class Watch:
    """Every process of one run, by its environment's mark and by descent, from the start to the end.

    Both are needed: Ray's workers overwrite their environment with their title, and a process whose parent has
    died no longer descends from the driver. What was seen once is remembered by (pid, start time).
    """

    def __init__(self, mark: str) -> None:
        self._mark, self._begin = f"{MARK}={mark}".encode(), time.time() - 60  # clocks differ
        self._seen: dict[psutil.Process, str] = {}  # its title when it was seen first
        self._ended = threading.Event()
        self.peak_pss = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def alive(self) -> list[psutil.Process]:
        """Those that run now, zombies not counted."""
        self._look()
        return [process for process in list(self._seen) if _runs(process)]

    def find(self, *words: str) -> list[psutil.Process]:
        """The running ones whose command line (or title) holds all the words."""
        return [process for process in self.alive() if all(word in _title(process) for word in words)]

    def ever(self, word: str) -> bool:
        """Whether one whose title held the word was seen."""
        return any(word in title for title in list(self._seen.values()))

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        for process in psutil.process_iter():
            if process not in self._seen and self._is_ours(process):
                self._seen[process] = _title(process)

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error, OSError):
            if process.create_time() < self._begin:
                return False
            marked = self._mark in Path(f"/proc/{process.pid}/environ").read_bytes()
            return marked or process.parent() in self._seen
        return False

    def _sample(self) -> None:
        while not self._ended.wait(0.5):
            self.peak_pss = max(self.peak_pss, sum(map(_pss, self.alive())))


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _pss(process: psutil.Process) -> int:
    """Bytes of its memory, what is shared split among those who share it."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


class SweepProcess:
    """`python -m harness ...` in a session of its own, like a job of a terminal; no lateness makes a point invalid."""

    def __init__(
        self,
        home: Path,
        overrides: Sequence[str],
        *,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        module: str = "harness",
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.temp = home / "tmp"
        self.temp.mkdir(exist_ok=True)
        self._out, self._err = home / "stdout.txt", home / "stderr.txt"
        mark = uuid.uuid4().hex
        patient = PATIENT if module == "harness" else ()
        self.watch = Watch(mark)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._child = subprocess.Popen(
                [python, "-m", module, *patient, *overrides],
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=_environment(self.temp) | {MARK: mark} | dict(env or {}),
                start_new_session=True,
                preexec_fn=_default_signals,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def send(self, number: int, *, to_group: bool = False) -> None:
        """A signal to the driver, or to all of its job as a terminal sends Ctrl-C."""
        (os.killpg if to_group else os.kill)(self._child.pid, number)

    def until(self, what: str, holds: Callable[[], Any], timeout_s: float = HANG_S) -> Any:
        """Poll until `holds()` is true, and give it back. Fails when the driver ends before or time runs out."""
        deadline = time.monotonic() + timeout_s
        while True:
            if value := holds():
                return value
            assert self.running, f"ended ({self._child.returncode}) before {what}:\n{self.said()}"
            assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}\n{self.said()}"
            time.sleep(POLL_S)

    def end(self, timeout_s: float = HANG_S) -> int:
        """Wait for the driver; its exit code."""
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:.0f} s:\n{self.said()}") from None

    def kill_all(self) -> None:
        """For the end of a test: nothing of this run outlives it, whatever the product does."""
        for process in self.watch.alive():
            with suppress(psutil.Error):
                process.kill()
        self._child.wait(HANG_S)
        self.watch.stop()

    def said(self) -> str:
        return f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"

    def until_started(self) -> psutil.Process:
        """The server's process, as soon as there is one."""
        return self.until("a server process", lambda: self.watch.find(SERVER))[0]

    def until_measuring(self, requests: int) -> psutil.Process:
        """The server's process, once it has this many requests (at least 2: more than the warm-up sends)."""
        assert requests >= 2
        return self.until(f"{requests} requests at the server", lambda: self._busy_server(requests))

    def _busy_server(self, requests: int) -> psutil.Process | None:
        for server in self.watch.find(SERVER):
            with suppress(psutil.Error, OSError, ValueError):
                info = server_info(server)
                if info["num_running"] + info["num_waiting"] >= requests:
                    return server
        return None


Start = Callable[..., SweepProcess]


@dataclass(frozen=True)
class Finished:
    """A small sweep that has ended well: two systems, concurrency 1 and 4, W&B offline."""

    run: SweepProcess
    folder: Path
    overrides: tuple[str, ...]


def server_info(server: psutil.Process) -> dict[str, Any]:
    """`/server_info` of a server process. Raises OSError or ValueError while it does not serve yet."""
    for port in listening_ports(server):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5) as response:
            return dict(json.load(response))
    raise OSError("it does not listen yet")


def listening_ports(process: psutil.Process) -> list[int]:
    return [c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def assert_nothing_left(run: SweepProcess, *, within_s: float = ENDED_S) -> None:
    """Every process of the run has ended, and nothing lies in its folder for temporary files."""
    deadline = time.monotonic() + within_s
    while left := run.watch.alive():
        described = "\n".join(f"{process.pid} {_title(process)[:200]}" for process in left)
        assert time.monotonic() < deadline, f"still running after {within_s:.0f} s:\n{described}\n{run.said()}"
        time.sleep(POLL_S)
    run.watch.stop()
    assert [path.name for path in run.temp.iterdir() if "hisparse" in path.name] == []


def assert_interrupted(run: SweepProcess, code: int) -> None:
    """Exit code 130 and one line, no traceback."""
    assert code == 130, run.said()
    assert run.stderr.strip().startswith("interrupted; "), run.said()
    assert len(run.stderr.strip().splitlines()) == 1, run.said()
    assert "Traceback" not in run.stdout


def _environment(temp: Path) -> dict[str, str]:
    """This process's, without what would steer Python, Ray or W&B."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "RAY_", "WANDB_"))}
    return plain | {"NETRC": "/nonexistent", "TMPDIR": str(temp), "COLUMNS": "120"}


def _default_signals() -> None:
    """A background job of a shell ignores Ctrl-C; the run under test must not inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def mtimes(folder: Path) -> dict[str, int]:
    """Of every file of every point below."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in sorted(folder.glob("*/c*-r*/*"))}


def points(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.glob("*/c*-r*")))
