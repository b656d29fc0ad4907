"""Clients that hang up or read slowly, an engine that breaks, and the server's process."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_cells import cell
from running_server import COMPLETIONS, DEADLINE_S, PROMPT, SERVER, Gate, RunningServer, gated, held_until, wait_for

from harness.schema import to_yaml


def hang_up(connection: socket.socket) -> None:
    connection.close()


def wait_until_dropped(server: RunningServer, gate: Gate, running: int, waiting: int) -> None:
    """Steps are allowed one by one: the request must leave long before its own end. None before the server has seen
    that the client is gone, which may take it a while."""
    wait_for(lambda: len(server.server._queues) == running + waiting, "the notice that a client is gone")

    def dropped() -> bool:
        if (server.engine.num_running, server.engine.num_waiting) == (running, waiting):
            return True
        gate.allow()
        return False

    before = gate.steps
    wait_for(dropped, "the release of a request whose client is gone")
    assert gate.steps - before < 250


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 9])
def test_a_client_that_hangs_up_frees_its_kv(server: RunningServer, stream: bool, steps: int) -> None:
    """Before the first token (its prefill is under way), after it, and in the middle of the output."""
    with gated(server.engine) as gate:
        body = {"prompt": PROMPT, "max_tokens": 350, "ignore_eos": True, "stream": stream}
        connection = server.open(COMPLETIONS, body)
        wait_for(lambda: server.engine.num_running == 1, "the request's start")
        gate.allow(steps)
        wait_for(lambda: gate.steps == steps, "the steps")
        if stream and steps:
            assert b"data: " in connection.recv(10_000) or b"data: " in connection.recv(10_000)
        hang_up(connection)
        wait_until_dropped(server, gate, 0, 0)
    assert server.call("POST", "/flush_cache")[0] == 200
    assert server.complete(PROMPT, 3)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_while_queued_leaves_the_queue(server: RunningServer, stream: bool) -> None:
    with gated(server.engine) as gate:
        body = {"prompt": [3] * 20, "max_tokens": 60, "ignore_eos": True, "stream": stream}
        running = [server.open(COMPLETIONS, body)]
        wait_for(lambda: server.engine.num_running == 1, "the first request's start")
        running += [server.open(COMPLETIONS, body) for _ in range(2)]
        wait_for(lambda: len(server.server._queues) == 3, "the others' arrival")
        queued = server.open(COMPLETIONS, body)
        wait_for(lambda: len(server.server._queues) == 4, "the last one's arrival")
        gate.allow()
        wait_for(lambda: (server.engine.num_running, server.engine.num_waiting) == (3, 1), "a queue")
        hang_up(queued)
        wait_until_dropped(server, gate, 3, 0)
        for connection in running:
            hang_up(connection)
        wait_until_dropped(server, gate, 0, 0)


def test_all_prompts_of_a_client_that_hangs_up_are_dropped(server: RunningServer) -> None:
    with gated(server.engine) as gate:
        connection = server.open(
            COMPLETIONS, {"prompt": [[1], [2], [3], [4], [5]], "max_tokens": 70, "ignore_eos": True}
        )
        wait_for(lambda: len(server.server._queues) == 5, "the request's arrival")
        gate.allow(2)
        wait_for(lambda: server.engine.num_running == 3, "its start")
        hang_up(connection)
        wait_until_dropped(server, gate, 0, 0)


def test_clients_that_vanish_at_once_leave_no_traceback(
    server: RunningServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Gone before the response's head is written, all at the same moment: nothing of ours is wrong."""
    body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "stream": True}

    def vanish(_: int) -> None:
        connection = server.open(COMPLETIONS, body)
        reset = struct.pack("ii", 1, 0)  # close by RST
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        connection.close()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(vanish, range(200)))
    wait_for(lambda: server.call("POST", "/flush_cache")[0] == 200, "the release of all requests")
    assert "Traceback" not in "".join(capfd.readouterr())


def test_dropping_ten_thousand_waiting_requests_is_quick(server: RunningServer) -> None:
    """One client's list of prompts. Each drop once rebuilt the whole queue, and nobody got a token for seconds."""
    with gated(server.engine) as gate:
        body = {"prompt": [[1]] * 10_000, "max_tokens": 9, "ignore_eos": True}
        connection = server.open(COMPLETIONS, body)
        wait_for(lambda: len(server.server._queues) == 10_000, "the request's arrival")
        gate.allow(2)
        wait_for(lambda: server.engine.num_waiting > 9_000, "a queue")
        hang_up(connection)
        wait_until_dropped(server, gate, 0, 0)


def test_a_reader_that_stops_reading_holds_up_nobody(server: RunningServer) -> None:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": [7], "max_tokens": 150, "ignore_eos": True, "stream": True, "stream_options": usage}
    with held_until(server, 2), ThreadPoolExecutor(1) as pool:
        slow = server.open(COMPLETIONS, body)
        other = pool.submit(server.complete, PROMPT, 5)
    with slow:
        assert other.result()["usage"]["completion_tokens"] == 5
        wait_for(lambda: server.engine.num_running == 0, "the end of the slow reader's request")
        assert server.call("POST", "/flush_cache")[0] == 200  # its KV is free although it has read nothing
        received = b""
        while b"[DONE]" not in received:
            received += slow.recv(1 << 16)
        assert received.count(b'"finish_reason": null') == 149


@pytest.fixture
def breakable() -> Iterator[RunningServer]:
    running = RunningServer(cell(SERVER))
    yield running
    running.close()


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_failure_ends_every_client_with_an_error(breakable: RunningServer, stream: bool) -> None:
    """Running, queued and still on their way to the engine: none may wait for ever."""
    engine = breakable.engine
    body = {"prompt": PROMPT, "max_tokens": 50, "ignore_eos": True}
    with ThreadPoolExecutor(8) as pool, gated(engine) as gate:

        def ask() -> Any:
            return breakable.events(COMPLETIONS, body) if stream else breakable.call("POST", COMPLETIONS, body)

        answers = [pool.submit(ask)]
        wait_for(lambda: engine.num_running == 1, "the first request's start")
        gate.allow(2)
        wait_for(lambda: gate.steps == 2, "two steps")

        def broken(plan: Any) -> Any:
            raise RuntimeError("a step went wrong")

        gate._run = broken
        answers += [pool.submit(ask) for _ in range(7)]  # these reach the inbox while the step is under way
        wait_for(lambda: len(breakable.server._queues) == 8, "all requests' arrival")
        gate.allow()
        for answer in answers:
            result = answer.result(DEADLINE_S)
            error = json.loads(result[-1]) if stream else result[1]
            assert error["error"]["type"] == "server_error"
            assert "the engine has failed" in error["error"]["message"]
            assert stream or result[0] == 500
    assert "a step went wrong" in (engine.failure or "")
    assert breakable.call("GET", "/health") == (503, {"status": "failed"})
    for method, path, sent in (("POST", COMPLETIONS, body), ("POST", "/flush_cache", None)):
        status, reply = breakable.call(method, path, sent)
        assert status == 503
        assert reply["error"]["type"] == "server_error"
    assert breakable.call("GET", "/metrics")[0] == 200
    info = breakable.call("GET", "/server_info")[1]
    assert info["num_waiting"] >= 0


def test_a_leak_found_by_a_flush_is_a_failure_and_not_silence(breakable: RunningServer) -> None:
    breakable.engine._executor.kv._free_rows.pop()
    status, _ = breakable.call("POST", "/flush_cache")
    assert status in (409, 503)
    wait_for(lambda: breakable.call("GET", "/health")[0] == 503, "the failure")
    assert "rows were lost" in (breakable.engine.failure or "")


def test_the_process_binds_to_loopback_and_ends_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(cell(SERVER)))
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "harness.engine.server", "--config", str(tmp_path / "config.yaml")]
    process = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None, "the server's start")
        url = json.loads(ready.read_text())["url"]
        listening = [c.laddr for c in psutil.Process(process.pid).net_connections("tcp") if c.status == "LISTEN"]
        assert [address.ip for address in listening] == ["127.0.0.1"]
        assert url == f"http://127.0.0.1:{listening[0].port}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
