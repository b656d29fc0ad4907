"""A server over a real engine in this process, on a loopback port, and a blocking client for it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from engine_cells import GLM

from harness.engine.engine import Engine, wait_until_ready
from harness.engine.executor import StepResult
from harness.engine.scheduler import Plan
from harness.engine.server.app import Server
from harness.engine.tokenizer import ByteTokenizer
from harness.schema import Config

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CONTEXT, VOCAB = 512, 512
SERVER = [*GLM, "model.num_layers=2", f"engine.context_len={CONTEXT}", "engine.batch_invariant=true"]
SERVER += ["selector.top_k=16", "offload=hisparse_sync", "offload.cache_slots=24"]
SERVER += ["engine.max_running_requests=3", "engine.host_kv_budget=150KiB"]  # 400 positions at 384 bytes
PROMPT = list(range(40, 70))
DEADLINE_S = 240.0  # of everything that is waited for; reached only by a hang


class RunningServer:
    def __init__(self, config: Config):
        self.config = config
        self.engine = Engine(config, None)
        self.engine.start()
        wait_until_ready(self.engine)
        self.server = Server(config, self.engine, ByteTokenizer(config.model.vocab_size))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = self._in_loop(self._start())

    def _in_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    async def _start(self) -> int:
        self._runner = web.AppRunner(self.server.app(), access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, shutdown_timeout=1.0)
        await site.start()
        return site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr, attr-defined, no-any-return]

    def close(self) -> None:
        self._in_loop(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
        self.engine.stop()

    # --- the client's side ---

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and decoded JSON (text where it is not JSON) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, headers)
            response = connection.getresponse()
            data = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return response.status, json.loads(data) if is_json else data.decode()
        finally:
            connection.close()

    def complete(self, prompt: Any, max_tokens: int, **options: Any) -> dict[str, Any]:
        """A completion that does not stream, greedy unless told otherwise; it must succeed."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} | options
        status, reply = self.call("POST", "/v1/completions", body)
        assert status == 200, reply
        return reply  # type: ignore[no-any-return]

    def open(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A connection on which the request has been sent and nothing has been read."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(raw)}\r\n\r\n"
        connection.sendall(head.encode() + raw)
        return connection

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunks of a streamed response, which must end with [DONE]."""
        events = self.events(path, body)
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def events(self, path: str, body: dict[str, Any]) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("POST", path, json.dumps({"stream": True} | body).encode())
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.headers.get_content_type() == "text/event-stream"
            return _data_of(response.read().decode())
        finally:
            connection.close()


def _data_of(text: str) -> list[str]:
    assert text.endswith("\n\n")
    events = text[:-2].split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


def wait_for(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {DEADLINE_S} s"
        time.sleep(0.005)


class Gate:
    """Lets the engine take a step only when told to."""

    def __init__(self, run: Callable[[Plan], StepResult]):
        self._run = run
        self._permits = threading.Semaphore(0)
        self._opened = threading.Event()
        self.steps = 0

    def run(self, plan: Plan) -> StepResult:
        while not self._opened.is_set() and not self._permits.acquire(timeout=0.005):
            pass
        step = self._run  # before the step is counted: who has seen the count may change what the next one does
        self.steps += 1
        return step(plan)

    def allow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._permits.release()

    def open(self) -> None:
        self._opened.set()


@contextmanager
def gated(engine: Engine) -> Iterator[Gate]:
    executor = engine._executor
    gate = Gate(executor.run)
    executor.run = gate.run  # type: ignore[method-assign]
    try:
        yield gate
    finally:
        del executor.run  # the method of the class is back
        gate.open()


@contextmanager
def held_until(server: RunningServer, arrived: int) -> Iterator[None]:
    """No step before so many requests have arrived, so that they do run together however slowly they come."""
    with gated(server.engine) as gate, ThreadPoolExecutor(1) as pool:

        def let_go() -> None:
            wait_for(lambda: len(server.server._queues) >= arrived, f"the arrival of {arrived} requests")
            gate.open()

        letting_go = pool.submit(let_go)
        yield
        letting_go.result()
