"""The HTTP side of the native engine: OpenAI routes, health, metrics, server info, flush."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from aiohttp import web

from harness.engine.decoder import decode_label
from harness.engine.engine import FAILED, CannotServe, Engine, Event, Submission
from harness.engine.footprint import Footprint
from harness.engine.kv.sharing import prefetch_label
from harness.engine.selectors.recording import trace_header
from harness.engine.server.metrics import exposition
from harness.engine.server.protocol import APIError, ParsedRequest, ReplyFormat, RequestParser, usage
from harness.engine.tokenizer import Tokenizer
from harness.schema import Config, Device, to_plain

LONG_BODY_BYTES = 32 << 10  # some milliseconds to parse and tokenise
SPARE_BODY_BYTES = 1 << 20
BODY_BYTES_PER_POSITION = 64  # a token id as JSON takes 7, a long token of text about as much as this
_EXPOSED_IO = {
    Device.cpu: "measured where a step waits for records",
    Device.cuda: "not measured: copies are ordered among the kernels; compare with offload=no_io_oracle",
}
_STARTED = web.RequestKey("streaming", bool)  # set in a request whose response has begun


class Server:
    """Routes of one engine. `app()` is given to aiohttp; everything runs in its event loop."""

    def __init__(self, config: Config, engine: Engine, tokenizer: Tokenizer):
        self._config, self._engine, self._tokenizer = config, engine, tokenizer
        self._model = config.model.name
        self._parser = RequestParser(self._model, tokenizer, config.model.vocab_size, config.context_len)
        self._queues: dict[int, asyncio.Queue[Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def app(self) -> web.Application:
        limit = SPARE_BODY_BYTES + BODY_BYTES_PER_POSITION * self._config.context_len
        app = web.Application(client_max_size=limit, middlewares=[_errors_as_json])
        app.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/server_info", self._server_info),
                web.post("/flush_cache", self._flush),
                web.get("/flush_cache", self._flush),
                web.get("/selection_trace", self._selection_trace),
            ]
        )
        return app

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, self._parser.parse_completion, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, self._parser.parse_chat, chat=True)

    async def _serve(
        self, request: web.Request, parse: Callable[[bytes], ParsedRequest], *, chat: bool
    ) -> web.StreamResponse:
        raw = await _body(request)
        # the other requests' tokens go out while a long text is tokenised; not while JSON is read, which
        # holds Python's lock: the limit on the body bounds that
        parsed = parse(raw) if len(raw) < LONG_BODY_BYTES else await asyncio.to_thread(parse, raw)
        reply = ReplyFormat(self._model, chat)
        queue: asyncio.Queue[Event] = asyncio.Queue()
        ids = self._submit(parsed, queue)
        try:
            if parsed.stream:
                return await self._stream(request, parsed, reply, ids, queue)
            return await self._whole(parsed, reply, ids, queue)
        finally:  # also when the client hung up: its KV is released
            for request_id in ids:
                self._queues.pop(request_id, None)
                self._engine.cancel(request_id)

    def _submit(self, parsed: ParsedRequest, queue: asyncio.Queue[Event]) -> dict[int, int]:
        """Submit every prompt; engine id -> index of the choice."""
        if self._engine.failure:
            raise APIError(503, FAILED)
        self._loop = asyncio.get_running_loop()
        ids: dict[int, int] = {}
        for index, prompt in enumerate(parsed.prompts):
            try:
                request_id = self._engine.submit(
                    Submission(
                        prompt=prompt,
                        max_new_tokens=parsed.max_tokens,
                        deliver=self._deliver,
                        temperature=parsed.temperature,
                        seed=parsed.seed,
                        ignore_eos=parsed.ignore_eos,
                    )
                )
            except CannotServe as error:
                for submitted in ids:
                    self._queues.pop(submitted)
                    self._engine.cancel(submitted)
                raise APIError(400, str(error), code="request_too_large") from error
            ids[request_id] = index
            self._queues[request_id] = queue  # before the loop can run _dispatch for this id
        return ids

    def _deliver(self, events: list[Event]) -> None:
        """Called in the engine's thread, once a step."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            queue = self._queues.get(event.request_id)
            if queue is not None:
                queue.put_nowait(event)

    async def _stream(
        self,
        request: web.Request,
        parsed: ParsedRequest,
        reply: ReplyFormat,
        ids: dict[int, int],
        queue: asyncio.Queue[Event],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        request[_STARTED] = True
        prompt_tokens, generated, open_choices = sum(map(len, parsed.prompts)), 0, len(ids)
        texts = {request_id: self._tokenizer.stream() for request_id in ids}
        for chunk in reply.opening():
            await _send(response, chunk)
        while open_choices:
            event = await queue.get()
            if event.finish_reason == "error":
                await _send(response, APIError(500, FAILED).body())
                return response
            text = ""
            if event.token is not None:
                generated += 1
                text = texts[event.request_id].push(event.token)
            if event.finish_reason:
                open_choices -= 1
                text += texts[event.request_id].flush()
            chunk = reply.chunk(ids[event.request_id], text, event.finish_reason)
            if parsed.continuous_usage:
                chunk["usage"] = usage(prompt_tokens, generated)
            await _send(response, chunk)
        if parsed.include_usage:
            await _send(response, reply.closing(usage(prompt_tokens, generated)))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _whole(
        self, parsed: ParsedRequest, reply: ReplyFormat, ids: dict[int, int], queue: asyncio.Queue[Event]
    ) -> web.Response:
        tokens: dict[int, list[int]] = {request_id: [] for request_id in ids}
        reasons: dict[int, str] = {}
        while len(reasons) < len(ids):
            event = await queue.get()
            if event.finish_reason == "error":
                raise APIError(500, FAILED)
            if event.token is not None:
                tokens[event.request_id].append(event.token)
            if event.finish_reason:
                reasons[event.request_id] = event.finish_reason
        counts = usage(sum(map(len, parsed.prompts)), sum(map(len, tokens.values())))
        texts = [self._tokenizer.decode(tokens[i]) for i in ids]
        return web.json_response(reply.whole(texts, [reasons[i] for i in ids], counts))

    async def _models(self, request: web.Request) -> web.Response:
        entry = {"id": self._model, "object": "model", "created": 0, "owned_by": "hisparse-harness"}
        entry["max_model_len"] = self._config.context_len
        return web.json_response({"object": "list", "data": [entry]})

    async def _health(self, request: web.Request) -> web.Response:
        if self._engine.failure:
            return web.json_response({"status": "failed"}, status=503)
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = exposition(self._engine)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _server_info(self, request: web.Request) -> web.Response:
        footprint = Footprint(self._config)
        longest = footprint.request(self._config.context_len)
        return web.json_response(
            {
                "engine": "native",
                "config": to_plain(self._config),
                "stats": asdict(self._engine.stats()),
                "num_running": self._engine.num_running,
                "num_waiting": self._engine.num_waiting,
                "kv_bytes_of_longest_request": longest._asdict(),
                "prefill_workspace_bytes": footprint.workspace,
                "link": self._config.platform.link_label,
                "prefetch": prefetch_label(self._config),
                "decode": decode_label(self._config),
                "exposed_io": _EXPOSED_IO[self._config.platform.device],
            }
        )

    async def _flush(self, request: web.Request) -> web.Response:
        problem = await asyncio.to_thread(self._engine.flush)
        if self._engine.failure:
            raise APIError(503, FAILED)
        if problem:
            raise APIError(409, f"cannot flush: {problem}")
        return web.json_response({"status": "flushed"})

    async def _selection_trace(self, request: web.Request) -> web.Response:
        """The trace of what was selected since the last flush, or since it was last asked for."""
        spool = await asyncio.to_thread(self._engine.take_selections)
        if isinstance(spool, str):
            raise APIError(409, spool)
        body = await asyncio.to_thread(spool.trace_bytes, trace_header(self._config))
        return web.Response(body=body, content_type="application/octet-stream")


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.RequestPayloadError as error:  # a wrong Content-Encoding, broken chunks
        raise APIError(400, f"the request body cannot be read: {' '.join(str(error).split())}") from error


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    try:
        return await handler(request)
    except APIError as error:
        response = web.json_response(error.body(), status=error.status)
        if isinstance(error.__cause__, web.RequestPayloadError):
            response.force_close()  # what follows on this connection cannot be told from the broken body
        return response
    except web.HTTPException as error:  # unknown path, wrong method, body too large
        shaped = APIError(error.status, f"{request.method} {request.path}: {error.reason}")
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        response = web.json_response(shaped.body(), status=error.status, headers=allow)
        if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            response.force_close()  # the rest of the body is not read
        return response
    except ConnectionResetError:  # the client is gone: nobody reads this
        return web.Response()
    except Exception:
        if _STARTED in request:  # too much is sent for another status
            raise
        traceback.print_exc()
        return web.json_response(APIError(500, "internal error; see the server's log").body(), status=500)
