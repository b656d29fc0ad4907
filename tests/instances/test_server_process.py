"""A server as a child process: ready, slow, broken, stubborn, orphaned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.instances.base import InstanceError
from harness.instances.process import ServerProcess

HANG_S = 240.0  # of whatever is waited for
Launch = Callable[..., ServerProcess]


@pytest.fixture
def launch() -> Iterator[Launch]:
    started: list[ServerProcess] = []

    def begin(code: str, **how: object) -> ServerProcess:
        started.append(ServerProcess([sys.executable, "-c", textwrap.dedent(code)], **how))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for process in started:
        process.stop(grace_s=0.1)


def says(process: ServerProcess, word: str) -> Callable[[], bool]:
    return lambda: word in process.read_log(0)[0]


def test_it_waits_until_ready_and_reads_the_log_in_pieces(launch: Launch) -> None:
    server = launch("import time; print('up', flush=True); time.sleep(600)")
    server.wait_ready(says(server, "up"), timeout_s=HANG_S)
    server.check()
    text, end = server.read_log(0)
    assert (text, end) == ("up\n", 3)
    assert server.read_log(end) == ("", 3)
    server.stop()
    assert server.read_log(0) == ("up\n", 3)  # also after its end
    with pytest.raises(InstanceError, match=r"ended with exit code -15: up$"):
        server.check()
    server.stop()


def test_a_crash_is_reported_with_its_last_words(launch: Launch) -> None:
    server = launch("print('so far so good'); raise ValueError('no weights')")
    with pytest.raises(InstanceError, match=r"^the server ended with exit code 1: ValueError: no weights$"):
        server.wait_ready(lambda: False, timeout_s=HANG_S)


def test_a_slow_start_is_given_up(launch: Launch) -> None:
    server = launch("import time; time.sleep(600)")
    with pytest.raises(InstanceError, match=r"^the server was not ready within 0\.1 s$"):
        server.wait_ready(lambda: False, timeout_s=0.1)


def test_one_that_ignores_sigterm_is_killed_with_its_children(launch: Launch) -> None:
    server = launch(
        """
        import signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("child", subprocess.Popen(["sleep", "600"]).pid, flush=True)
        time.sleep(600)
        """
    )
    server.wait_ready(says(server, "\n"), timeout_s=HANG_S)
    child = psutil.Process(int(server.read_log(0)[0].split()[1]))
    server.stop(grace_s=0.2)
    assert not psutil.pid_exists(server.pid)
    child.wait(HANG_S)


def test_two_threads_that_stop_it_end_it_once(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails and whoever gives it up: the second signal would go to a number that is another's by then."""
    server = launch("import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)")
    server.wait_ready(says(server, "1"), timeout_s=HANG_S)
    sent, begun, real = [], threading.Event(), os.killpg

    def killpg(group: int, number: int) -> None:
        sent.append(number)
        real(group, number)
        begun.set()

    monkeypatch.setattr(os, "killpg", killpg)
    first = threading.Thread(target=server.stop, kwargs={"grace_s": 1.0})
    first.start()
    assert begun.wait(HANG_S)
    server.stop(grace_s=0.0)
    first.join()
    assert sent == [signal.SIGTERM, signal.SIGKILL]


def test_it_finds_modules_where_we_do(launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    server = launch("import sys; print(sys.path[1])")
    with pytest.raises(InstanceError, match=r"exit code 0"):
        server.wait_ready(lambda: False, timeout_s=HANG_S)
    assert server.read_log(0)[0].strip() == str(tmp_path)


def test_its_standard_input_ends_when_we_are_killed(launch: Launch) -> None:
    """The promise `--exit-with-stdin` rests on."""
    owner_code = textwrap.dedent(
        """
        import sys, time
        from harness.instances.process import ServerProcess
        child = ServerProcess([sys.executable, "-c", "import os; os.read(0, 1)"])
        print(child.pid, flush=True)
        time.sleep(600)
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", owner_code], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        child = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        child.wait(HANG_S)
    finally:
        owner.kill()
        owner.wait()


def test_nothing_is_written_to_a_folder(launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = launch("import time; print('up', flush=True); time.sleep(600)")
    server.wait_ready(says(server, "up"), timeout_s=HANG_S)
    assert os.listdir(str(tmp_path)) == []
