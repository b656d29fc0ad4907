"""An instance of SGLang around a server that only looks like it; tests/sglang has the real one."""

from __future__ import annotations

import errno
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from harness.config import load_cells
from harness.instances import InstanceError, make_instance
from harness.instances import sglang as module
from harness.instances.base import Place, meeting_point
from harness.instances.external import ExternalInstance
from harness.instances.process import port_taken
from harness.instances.sglang import SGLangInstance, StartWatch, interpreter, urls
from harness.instances.wire import fetch
from harness.simulation.pools import record_bytes_per_token

HANG_S = 240.0  # of whatever is waited for
Make = Callable[..., SGLangInstance]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("HISPARSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "LAST_WORDS_S", 0.5)
    python = tmp_path / "python"
    fake = Path(__file__).with_name("fake_sglang.py")
    python.write_text(
        f'#!/bin/sh\ncase "$1" in -m) exec {shlex.quote(sys.executable)} {shlex.quote(str(fake))} "$@";; esac\nexit 0\n'
    )
    python.chmod(0o755)
    made: list[SGLangInstance] = []

    def begin(mode: str = "", *overrides: str) -> SGLangInstance:
        base = ["experiment=quickstart", "engine=sglang", "model=qwen3_tiny", "selector=dense", "offload=full_kv"]
        keys = [f"engine.python={python}", f"engine.env=['MODE={mode}']", "engine.device_kv_budget=1MiB"]
        config = load_cells([*base, *keys, "engine.host_kv_budget=0", "tracker=none", *overrides])[0]
        instance = make_instance(config)
        assert isinstance(instance, SGLangInstance)
        made.append(instance)
        return instance

    yield begin
    for instance in made:
        instance.stop()


def child_of(instance: SGLangInstance) -> psutil.Process:
    deadline = time.monotonic() + HANG_S
    while not (found := re.search(r"^child (\d+)$", instance.read_log(0)[0], re.M)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return psutil.Process(int(found.group(1)))


def test_it_serves_reports_and_goes(make: Make) -> None:
    instance = make()
    url = instance.start()
    instance.check()
    child = child_of(instance)
    assert "PYTHONPATH None" in instance.read_log(0)[0]  # its modules are its interpreter's
    stats = instance.stats()
    assert (stats.version, stats.decode_tokens) == ("sglang 0.5.23", 12)
    assert stats.peak_running == 9
    instance.flush()  # refused twice first
    assert instance.stats().peak_running is None  # of the time since the flush
    fetch(url + "/decode")
    stats = instance.stats()
    assert stats.peak_running == 2
    assert stats.device_records_bytes == 30 * record_bytes_per_token(instance._config)
    server = instance.describe()["server"]
    assert server["version"] == "0.5.23" and server["memory_usage"] == {"weight": 1.5}
    assert server["gauges"] == {"max_total_num_tokens": 8192.0}
    assert "never-to-be-kept" not in str(instance.describe()) and "quantization" not in server
    assert f"--port {url.rsplit(':', 1)[1]} " in server["launch_command"]
    instance.stop()
    instance.stop()
    child.wait(HANG_S)
    with pytest.raises(InstanceError, match="ended with exit code"):
        instance.check()


def test_a_fatal_line_fails_the_start_at_once(make: Make) -> None:
    instance, begin = make("fatal"), time.monotonic()
    with pytest.raises(InstanceError, match=r"^the server cannot start: RuntimeError: Not enough memory\. Please"):
        instance.start()
    assert time.monotonic() - begin < 600  # and not engine.start_timeout_s, an hour
    child_of_log = re.search(r"^child (\d+)$", instance.read_log(0)[0], re.M)
    assert child_of_log and not psutil.pid_exists(int(child_of_log.group(1)))


def test_a_fatal_line_on_another_node_is_seen_though_its_process_hangs(make: Make) -> None:
    instance = make("fatal")
    assert instance.start(Place(node_rank=1, num_nodes=2, dist_init_addr="127.0.0.1:1")) == ""
    child_of(instance)

    def watched() -> None:
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            instance.check()
            time.sleep(0.05)

    with pytest.raises(InstanceError, match=r"^the server cannot go on: RuntimeError: Not enough memory\. Please"):
        watched()


def test_a_usage_error_is_told_in_its_words(make: Make) -> None:
    with pytest.raises(InstanceError, match=r"exit code 1: unrecognized arguments: --foo$"):
        make("usage").start()


def test_a_busy_server_may_take_seconds_for_its_health(make: Make) -> None:
    assert make("busy", "engine.start_timeout_s=100").start()


def test_the_deadline_holds(make: Make) -> None:
    with pytest.raises(InstanceError, match=r"not ready within 1\.5 s"):
        make("silent", "engine.start_timeout_s=1.5").start()


def test_other_nodes_do_not_wait(make: Make) -> None:
    instance = make("silent")
    assert instance.start(Place(1, 2, "127.0.0.1:5000")) == ""
    instance.check()
    assert "server" not in instance.describe()
    child = child_of(instance)
    instance.stop()
    child.wait(HANG_S)


def test_a_killed_server_is_noticed_and_its_children_end(make: Make) -> None:
    instance = make()
    instance.start()
    child = child_of(instance)
    child.parent().kill()  # type: ignore[union-attr]
    child.wait(HANG_S)
    with pytest.raises(InstanceError):
        instance.stats()


class Watched:
    """A start's log on a clock of its own: `look` after so many seconds, when so many bytes have been written."""

    def __init__(self, **limits: float):
        self.time_s, self.size = 100.0, 0
        self.watch = StartWatch(**limits, now=lambda: self.time_s)

    def look(self, after_s: float, size: int = 0, text: str = "") -> None:
        self.time_s += after_s
        self.size += size
        self.watch.look((text, self.size))


def test_a_log_that_stands_still_is_given_up() -> None:
    log = Watched(silence_s=60.0)
    for after_s, size in ((0, 7), (59, 0), (2, 20), (59, 0)):
        log.look(after_s, size, "loading")
    with pytest.raises(InstanceError, match="logged nothing for 60 s"):
        log.look(2)


def test_a_fatal_line_is_followed_by_the_rest_of_its_traceback_however_slowly_it_comes() -> None:
    log = Watched(last_words_s=2.0)
    log.look(1, 30, "Scheduler hit an exception: Traceback")
    for _ in range(4):
        log.look(1.5, 10, "  File")
    log.look(1.9)
    with pytest.raises(InstanceError, match="^the server cannot start$"):
        log.look(0.2)


def test_what_others_log_for_ever_after_a_fatal_line_ends_with_it() -> None:
    log = Watched(last_words_s=2.0)
    log.look(1, 30, "Scheduler hit an exception: Traceback")
    for _ in range(12):
        log.look(1, 10, "still waiting")
    with pytest.raises(InstanceError, match="^the server cannot start$"):
        log.look(1, 10, "still waiting")


def test_an_interpreter_without_sglang_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match=r"no such program: .*hisparse-harness\[sglang\]"):
        interpreter(str(tmp_path / "none"))
    with pytest.raises(InstanceError, match=r"has no sglang: .*engine\.python="):
        interpreter(sys.executable)
    with pytest.raises(InstanceError, match="this Python has no sglang"):
        interpreter(None)


def test_where_a_server_is_reached() -> None:
    assert urls("127.0.0.1", 80) == ("http://127.0.0.1:80", "http://127.0.0.1:80")
    outside, inside = urls("0.0.0.0", 80)
    assert inside == "http://127.0.0.1:80" and "0.0.0.0" not in outside


def test_ranks_meet_where_all_the_ports_that_follow_are_free_too(monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = meeting_point("127.0.0.1").rpartition(":")
    with ExitStack() as all_of_them:
        for offset in range(7):  # of data-parallel attention: SGLang's PortArgs
            all_of_them.enter_context(socket.create_server((host, int(port) + offset)))

    real, first = socket.create_server, []

    def one_is_taken(address: tuple[str, int], **options: int) -> socket.socket:
        if address[1] and not first[1:]:
            first.append(address[1])
            raise OSError(errno.EADDRINUSE, "Address already in use")
        made = real(address, **options)
        first.append(made.getsockname()[1])
        return made

    monkeypatch.setattr(socket, "create_server", one_is_taken)
    assert int(meeting_point("127.0.0.1").rpartition(":")[2]) != first[0]


def test_a_port_that_sglang_finds_taken_may_be_free_again() -> None:
    said = "ValueError: port_base at 39374 is not available in 30 seconds. port_base is used by a process already."
    assert port_taken(said) and not port_taken("ValueError: port must be below 65536")


def external(url: str, name: str) -> ExternalInstance:
    base = ["experiment=quickstart", "engine=external", "model=qwen3_tiny", "selector=dense", "offload=full_kv"]
    return ExternalInstance(load_cells([*base, f"model.name={name}", f"engine.url={url}", "tracker=none"])[0])


def test_an_external_server_is_used_and_left_alone(make: Make) -> None:
    instance = make()
    url = instance.start()
    other = external(f"{url}/v1", "tiny")
    assert other.start() == url
    other.check()
    other.flush()
    assert other.stats().version == "0.5.23"
    assert other.describe()["server"]["models"] == ["tiny"]
    other.stop()
    instance.check()
    with pytest.raises(InstanceError, match="serves tiny, not model.name=big"):
        external(url, "big").start()
    instance.stop()
    with pytest.raises(InstanceError, match="did not answer"):
        other.check()
