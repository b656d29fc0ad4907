"""A paced OpenAI-compatible test server that keeps its own record of what it really did."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Self

import pytest
from aiohttp import web

from harness.loadgen import native
from harness.loadgen.run import PointLoad, run_point
from harness.schema import LoadConfig
from workloads.prompt import Prompt, make_prompt


@dataclass
class Scenario:
    """How the server behaves: the truth is `first_s` to the first token, then `step_s` a token."""

    first_s: float = 0.05
    step_s: float = 0.01
    tokens_per_chunk: int = 1
    role_first: bool = False  # an empty chunk at once, the first token later
    usage: str = "continuous"  # or "final", "none"
    usage_late_s: float = 0.0
    finish: bool = True  # finish reason, usage and [DONE] after the tokens
    extra_tokens: int = 0  # generated beyond (or short of) max_tokens
    text_held: int = 0  # this many first tokens' text is sent with the next one
    keep_count_held: bool = False  # and their chunks are not sent at all
    status: int = 200
    fail_at: int | None = None  # token before which `failure` happens
    failure: str = ""  # "error_event", "close", "hang", "not_json", "not_sse"
    prompt_tokens_off: int = 0
    plain_json: dict | None = None  # the whole answer
    together: range = range(0)  # the requests of these numbers get no token before the last of them has come


@dataclass
class Truth:
    """What one request really was."""

    prompt: tuple[int, ...]
    arrived_s: float
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    hung_up: bool = False


@dataclass
class PacedServer:
    """`async with PacedServer(Scenario()) as server`: same process and clock as the client under test."""

    scenario: Scenario
    truths: list[Truth] = field(default_factory=list)
    running: int = 0
    max_running: int = 0
    base_url: str = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/completions", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        number, truth = len(self.truths), Truth(tuple(asked["prompt"]), time.perf_counter())
        self.truths.append(truth)
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            while number in self.scenario.together and len(self.truths) < self.scenario.together.stop:
                await asyncio.sleep(0.001)
            return await self._answer(request, asked, truth)
        except (asyncio.CancelledError, ConnectionResetError):
            truth.hung_up = True
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, asked: dict, truth: Truth) -> web.StreamResponse:
        plan = self.scenario
        if plan.status != 200:
            return web.json_response({"error": {"message": "the server says no"}}, status=plan.status)
        if plan.plain_json is not None:
            return web.json_response(plan.plain_json)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        stream = _Stream(response, plan, len(asked["prompt"]) + plan.prompt_tokens_off)
        if plan.role_first:
            await stream.send_chunk("", 0)
        total = asked["max_tokens"] + plan.extra_tokens
        sent = text = 0
        for token in range(total):
            if token == plan.fail_at and await stream.fail(plan.failure, request):
                return response
            await _sleep_until(truth.arrived_s + plan.first_s + token * plan.step_s)
            truth.first_s = truth.first_s or time.perf_counter()
            truth.last_s, truth.tokens = time.perf_counter(), token + 1
            whole = (token + 1) % plan.tokens_per_chunk == 0 or token + 1 == total
            if not whole or (token < plan.text_held and plan.keep_count_held):
                continue
            held = token < plan.text_held
            await stream.send_chunk("" if held else "abcd" * (token + 1 - text), token + 1)
            sent, text = token + 1, text if held else token + 1
        if plan.finish:
            await stream.finish(sent)
        await response.write_eof()
        return response


class _Stream:
    """Writes the events of one response."""

    def __init__(self, response: web.StreamResponse, plan: Scenario, prompt_tokens: int) -> None:
        self._response, self._plan, self._prompt_tokens = response, plan, prompt_tokens

    async def _event(self, payload: dict) -> None:
        await self._response.write(b"data: " + json.dumps(payload).encode() + b"\n\n")

    def _usage(self, tokens: int) -> dict:
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": tokens}

    async def send_chunk(self, text: str, tokens: int, finish: str | None = None) -> None:
        payload: dict = {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
        if self._plan.usage == "continuous":
            payload["usage"] = self._usage(tokens)
        await self._event(payload)

    async def finish(self, tokens: int) -> None:
        await self.send_chunk("", tokens, finish="length")
        await asyncio.sleep(self._plan.usage_late_s)
        if self._plan.usage != "none":
            await self._event({"choices": [], "usage": self._usage(tokens)})
        await self._response.write(b"data: [DONE]\n\n")

    async def fail(self, kind: str, request: web.Request) -> bool:
        """Do it; whether the response ends here."""
        if kind == "error_event":
            await self._event({"error": {"message": "out of memory", "code": 500}})
            await self._response.write(b"data: [DONE]\n\n")
        elif kind == "not_json":
            await self._response.write(b"data: {'choices'\n\n")
        elif kind == "not_sse":
            await self._response.write(b"<html>Bad gateway</html>\n")
        elif kind == "hang":
            await asyncio.sleep(300)
        elif kind == "close":
            request.transport.close()
        else:
            raise AssertionError(f"no such failure: {kind!r}")
        return kind not in ("not_json", "not_sse")


async def _sleep_until(time_s: float) -> None:
    await asyncio.sleep(max(time_s - time.perf_counter(), 0.0))


def make_prompts(count: int, *, input_len: int = 4, output_len: int = 8) -> list[Prompt]:
    """Different prompts, recognisable by their first id."""
    return [make_prompt([number] * input_len, output_len) for number in range(count)]


def make_limits(**overrides: float) -> LoadConfig:
    """Limits that end a hanging test, and none that a busy test machine reaches."""
    defaults: dict = {
        "concurrencies": [1],
        "num_requests": 1,
        "connect_timeout_s": 60.0,
        "first_token_timeout_s": 100.0,
        "idle_timeout_s": 100.0,
        "total_timeout_s": 200.0,
        "max_lag_p99_ms": 200_000.0,
        "max_lag_share": 100.0,
        "max_cpu_share": 100.0,
    }
    return LoadConfig(**(defaults | overrides))


def run_scenario(server_class, scenario, *, requests=4, concurrency=2, output_len=8, warmup=0, limits=None, **more):
    """Result and server after one point."""

    async def point():
        async with server_class(scenario) as server:
            prompts = make_prompts(requests + warmup, output_len=output_len)
            load = PointLoad(
                base_url=server.base_url,
                model="m",
                prompts=prompts[:requests],
                warmup=prompts[requests:],
                concurrency=concurrency,
                load=make_limits(**(limits or {})),
                **more,
            )
            return await run_point(load), server

    return asyncio.run(point())


@pytest.fixture(scope="module", params=["native", "python"])
def reader(request):
    """What reads the sockets, here and in child processes: for modules whose tests are to hold with both."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setenv("CXX", "no-such-compiler")
        native._library.cache_clear()
        if request.param == "native" and isinstance(why := native._library(), str):
            pytest.skip(why)
        yield request.param
    native._library.cache_clear()


@pytest.fixture
def paced():
    """`paced.run(paced.Scenario(...))` drives one point; its parts are `Server`, `prompts(n)`, `limits(...)`."""

    class Paced:
        Server, Scenario = PacedServer, Scenario
        prompts, limits = staticmethod(make_prompts), staticmethod(make_limits)

        @classmethod
        def run(cls, scenario, **more):
            return run_scenario(cls.Server, scenario, **more)

    return Paced


@pytest.fixture
def served(paced):
    """A server on a loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = paced.Server(paced.Scenario(first_s=0.1, step_s=0.005))
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    yield server
    asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
