"""Streams completions from an OpenAI-compatible server and notes when every byte arrives."""

from __future__ import annotations

import asyncio
import json
import time
from types import TracebackType
from typing import Any, Self

import aiohttp

from harness.loadgen.exchange import Exchange
from harness.loadgen.progress import Progress
from harness.loadgen.reading import carries_token, error_message, one_line
from harness.loadgen.sse import EventSplitter, NotSSE
from harness.schema import LoadConfig
from workloads import Prompt

_READ_BUFFER = 4 << 20  # bytes; a full buffer would stop the socket and falsify times
_KEEP_ALIVE_S = 1.0  # shorter than any server's, which might close just as we send


def completion_body(prompt: Prompt, *, model: str, temperature: float, ignore_eos: bool) -> bytes:
    """The JSON of one `/v1/completions` request with token ids and every usage the server can give."""
    return json.dumps(
        {
            "model": model,
            "prompt": prompt.token_ids,
            "max_tokens": prompt.output_len,
            "temperature": temperature,
            "ignore_eos": ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        separators=(",", ":"),
    ).encode()


class _Deadline:
    """The nearest of a request's time limits, and which one it is."""

    def __init__(self, limits: LoadConfig) -> None:
        self._limits = limits
        self._now = asyncio.get_running_loop().time
        self._total_at = self._now() + limits.total_timeout_s
        self.timer = asyncio.timeout_at(None)
        self._cause = "timeout_total"
        self._seconds = limits.total_timeout_s

    def restart(self, cause: str, seconds: float) -> None:
        """From now on `seconds` may pass, within the total."""
        at = self._now() + seconds
        self._cause, self._seconds = cause, seconds
        if at >= self._total_at:
            at, self._cause, self._seconds = self._total_at, "timeout_total", self._limits.total_timeout_s
        self.timer.reschedule(at)

    @property
    def problem(self) -> tuple[str, str]:
        what = {
            "timeout_first_token": "no token",
            "timeout_idle": "no data",
            "timeout_total": "not complete",
        }[self._cause]
        return (self._cause, f"{what} within {self._seconds:g} s (load.{self._cause[8:]}_timeout_s)")


class Client:
    """One session towards one server, as an async context manager. Leaving it closes every connection."""

    def __init__(self, base_url: str, limits: LoadConfig, progress: Progress | None = None) -> None:
        self._url = base_url.rstrip("/") + "/v1/completions"
        self._limits = limits
        self._progress = progress or Progress(0)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        traces = aiohttp.TraceConfig()
        traces.on_request_headers_sent.append(_note_sent)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._limits.connect_timeout_s),
            read_bufsize=_READ_BUFFER,
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
            trace_configs=[traces],
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def send(self, body: bytes, exchange: Exchange) -> None:
        """Carry one request out; every outcome is written into `exchange`, only cancellation is raised."""
        self._progress.running += 1
        deadline = _Deadline(self._limits)
        try:
            async with deadline.timer:
                deadline.restart("timeout_first_token", self._limits.first_token_timeout_s)
                await self._stream(body, exchange, deadline)
        except aiohttp.ConnectionTimeoutError:
            limit = self._limits.connect_timeout_s
            exchange.problem = ("connect", f"no connection within {limit:g} s (load.connect_timeout_s)")
        except aiohttp.ClientConnectorError as error:
            exchange.problem = ("connect", one_line(error))
        except TimeoutError:
            exchange.problem = deadline.problem
        except (aiohttp.ServerConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            exchange.broken = f"the connection broke: {one_line(error) or type(error).__name__}"
        except aiohttp.ClientError as error:  # not HTTP, or not a usable URL
            exchange.problem = ("malformed", one_line(error) or type(error).__name__)
        except asyncio.CancelledError:
            exchange.problem = ("cancelled", "the load generator was stopped")
            raise
        finally:
            exchange.end_s = time.perf_counter()
            self._progress.running -= 1

    async def _stream(self, body: bytes, exchange: Exchange, deadline: _Deadline) -> None:
        assert self._session is not None, "use the client as `async with Client(...)`"
        async with self._session.post(self._url, data=body, trace_request_ctx=exchange) as response:
            if response.status >= 400:
                kind = "http_4xx" if response.status < 500 else "http_5xx"
                exchange.problem = (kind, f"HTTP {response.status}: {_explain(await response.read())}")
                return
            await self._receive(response, exchange, deadline)

    async def _receive(self, response: aiohttp.ClientResponse, exchange: Exchange, deadline: _Deadline) -> None:
        """Keep the body's pieces with their times. Only what precedes the first token is parsed here."""
        limits, pieces, progress = self._limits, exchange.pieces, self._progress
        splitter: EventSplitter | None = EventSplitter()
        async for piece in response.content.iter_any():
            now_s = time.perf_counter()
            pieces.append((now_s, piece))
            progress.events += piece.count(b"data:")
            if splitter is not None and _has_token(splitter, now_s, piece):
                splitter = None
            if splitter is None:
                deadline.restart("timeout_idle", limits.idle_timeout_s)


async def _note_sent(session: aiohttp.ClientSession, context: Any, params: Any) -> None:
    context.trace_request_ctx.sent_s = time.perf_counter()


def _has_token(splitter: EventSplitter, now_s: float, piece: bytes) -> bool:
    try:
        return any(carries_token(event) for event in splitter.feed(now_s, piece))
    except NotSSE:  # whatever it is, it has begun; it is judged when it has ended
        return True


def _explain(body: bytes) -> str:
    """An error body in one line: its message when it is OpenAI-shaped."""
    try:
        payload = json.loads(body)
    except ValueError:
        payload = None
    message = error_message(payload) if isinstance(payload, dict) else None
    return message or one_line(body.decode(errors="replace")) or "no explanation"
