"""What the paced server writes for one request, and when: a scenario's pace in the words of an endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from harness.loadgen.bodies import Endpoint
from harness.loadgen.paced.scenarios import Scenario

_ODD = ["data: [DONE]\n\n", '"error"', "\r\n\r\n", "event: error", "\\", "é🙂", "}", '"meta_info"']
_PING_S = 0.05
End = Literal["", "close", "reset", "hang"]


class Move(NamedTuple):
    """One write. `tokens` generated tokens are on the wire once it is done."""

    at_s: float  # after the request's arrival
    data: bytes
    tokens: int = 0
    end: End = ""  # what is done to the connection after it


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants, as far as the server cares."""

    endpoint: Endpoint
    key: str  # tells requests apart: the first token id, or the text
    prompt_tokens: int
    max_tokens: int
    include_usage: bool = True
    continuous: bool = True


def read_ask(endpoint: Endpoint, body: bytes) -> Ask:
    """The wishes in a request's body. Raises KeyError, TypeError or ValueError for another shape."""
    payload = json.loads(body)
    options = payload.get("stream_options") or {}
    if endpoint == "generate":
        prompt = payload.get("input_ids") or payload["text"]
        return Ask(endpoint, _key(prompt), _length(prompt), payload["sampling_params"]["max_new_tokens"])
    prompt = payload["prompt"] if endpoint == "completions" else payload["messages"][-1]["content"]
    if isinstance(prompt, list) and isinstance(prompt[0], (dict, str)):  # content parts, or one text in a list
        prompt = prompt[0]["text"] if isinstance(prompt[0], dict) else prompt[0]
    asked = payload.get("max_completion_tokens") or payload["max_tokens"]
    usage = bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
    return Ask(endpoint, _key(prompt), _length(prompt), asked, *usage)


def _key(prompt: str | list[int]) -> str:
    return prompt[:40] if isinstance(prompt, str) else str(prompt[0])


def _length(prompt: str | list[int]) -> int:
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)


class Script:
    """The moves of one response's body."""

    def __init__(self, scenario: Scenario, ask: Ask) -> None:
        self._scenario, self._ask = scenario, ask
        self._total = ask.max_tokens + scenario.extra_tokens
        self._held = int(scenario.held_text * self._total)
        self._usage = scenario.usage
        if self._usage == "continuous" and not ask.continuous:
            self._usage = "final"
        if self._usage in ("final", "zeros") and not ask.include_usage:
            self._usage = "none"
        self._line = scenario.line_end.encode()

    def moves(self) -> Iterator[Move]:
        """In order of time."""
        scenario = self._scenario
        if scenario.opening:
            yield Move(0.0, self._opening())
        bundle: list[bytes] = []
        bundled = sent = 0
        events = 0
        while sent < self._total:
            size = min(scenario.pattern[events % len(scenario.pattern)], self._total - sent)
            events += 1
            if scenario.fail_at is not None and sent + size > scenario.fail_at:
                yield from self._fail(self._at(sent), sent)
                return
            at_s = self._at(sent + size - 1)
            if not (scenario.held_events and sent + size <= self._held):
                bundle.append(self._event(sent, size))
            bundled += size
            sent += size
            if bundle and (events % scenario.bundle == 0 or sent == self._total):
                yield from self._write(at_s, b"".join(bundle), bundled)
                bundle, bundled = [], 0
        yield from self._finish(self._at(self._total - 1), sent)

    def _at(self, token: int) -> float:
        return self._scenario.first_s + token * self._scenario.step_s

    def _write(self, at_s: float, data: bytes, tokens: int) -> Iterator[Move]:
        if self._scenario.split_s:
            half = len(data) // 2
            yield Move(at_s, data[:half])
            yield Move(at_s + self._scenario.split_s, data[half:], tokens)
        else:
            yield Move(at_s, data, tokens)

    def _event(self, before: int, size: int) -> bytes:
        after = before + size
        if after <= self._held:
            text = ""
        else:
            first = 0 if before <= self._held else before
            text = "".join(self._text(token) for token in range(first, after))
        return self._chunk(text, after, before)

    def _text(self, token: int) -> str:
        scenario = self._scenario
        if scenario.silent_text and token % scenario.silent_text == 1:
            return ""
        return _ODD[token % len(_ODD)] if scenario.odd_text else f" w{token % 1000}"

    def _chunk(self, text: str, tokens: int, before: int, finish: str | None = None) -> bytes:
        if self._ask.endpoint == "generate":
            return self._data(self._generate_chunk(tokens, before, finish))
        counts = {"continuous": tokens, "zeros": 0}.get(self._usage)
        choice: dict[str, Any] = {"index": 0}
        if self._ask.endpoint == "chat":
            field = "reasoning_content" if self._scenario.reasoning and tokens <= self._total // 2 else "content"
            choice["delta"] = {field: text}
        else:
            choice["text"] = text
        return self._openai([choice | {"logprobs": None, "finish_reason": finish}], counts)

    def _openai(self, choices: list[dict[str, Any]], tokens: int | None) -> bytes:
        kind = "chat.completion.chunk" if self._ask.endpoint == "chat" else "text_completion"
        payload: dict[str, Any] = {"id": "cmpl-4f1c", "object": kind, "created": 1, "model": "paced"}
        payload["choices"] = choices
        if tokens is not None:
            prompt = self._ask.prompt_tokens + self._scenario.extra_prompt_tokens
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
            payload["usage"] = usage
        return self._data(payload)

    def _generate_chunk(self, tokens: int, before: int, finish: str | None) -> dict[str, Any]:
        start = before if self._scenario.incremental else 0
        meta = {
            "id": "4f1c",
            "finish_reason": {"type": finish, "length": tokens} if finish else None,
            "prompt_tokens": self._ask.prompt_tokens + self._scenario.extra_prompt_tokens,
            "completion_tokens": tokens,
        }
        shown = range(start, tokens) if tokens > self._held else range(0)
        text = "".join(map(self._text, shown))
        return {"text": text, "output_ids": list(range(start, tokens)), "meta_info": meta}

    def _data(self, payload: dict[str, Any]) -> bytes:
        return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + self._line * 2

    def _opening(self) -> bytes:
        if self._scenario.opening == "comment":
            return b"\xef\xbb\xbf" * self._scenario.bom + b": one moment" + self._line * 2
        if self._ask.endpoint == "chat":
            delta = {"role": "assistant", "content": ""} if self._scenario.opening == "role" else {"content": ""}
            return self._openai([{"index": 0, "delta": delta, "finish_reason": None}], None)
        return self._openai([{"index": 0, "text": "", "finish_reason": None}], None)

    def _finish(self, at_s: float, tokens: int) -> Iterator[Move]:
        scenario = self._scenario
        if scenario.end == "nothing":
            yield Move(at_s, b"")
            return
        if scenario.end == "done_only":
            yield Move(at_s, b"data: [DONE]" + self._line * 2)
            return
        last = self._chunk("", tokens, tokens, scenario.finish_reason)
        late_s = at_s + scenario.usage_late_s
        if self._usage != "none" and self._ask.endpoint != "generate":
            yield Move(at_s, last)
            last = self._openai([], tokens)
        if scenario.end != "no_done":
            last += b"data: [DONE]" + self._line * 2
        yield Move(late_s, last, end="hang" if scenario.end == "hang" else "")

    def _fail(self, at_s: float, tokens: int) -> Iterator[Move]:
        failure = self._scenario.failure
        done = b"data: [DONE]" + self._line * 2
        if failure == "error_event":
            yield Move(at_s, self._data({"error": {"message": "out of memory", "code": 500}}) + done)
        elif failure == "error_object":
            yield Move(at_s, self._data({"object": "error", "message": "out of memory", "code": 500}) + done)
        elif failure == "abort":
            yield Move(at_s, self._abort(tokens) + done)
        elif failure == "huge_count":
            yield Move(at_s, self._huge_count(tokens) + done)
        elif failure == "not_json":
            yield Move(at_s, b"data: {'choices'" + self._line * 2 + done)
        elif failure == "not_sse":
            yield Move(at_s, b"<html>Bad gateway</html>" + self._line + done)
        elif failure == "pings":
            for number in range(int(20 / _PING_S)):
                yield Move(at_s + number * _PING_S, b": ping" + self._line * 2)
        else:
            assert failure in ("close", "reset", "hang"), failure
            yield Move(at_s, b"", end=failure)

    def _huge_count(self, tokens: int) -> bytes:
        """The usual chunk, but for a count that no integer of a table holds."""
        name = b'"completion_tokens":'
        counted = self._chunk("x", tokens, tokens) if self._usage == "continuous" else self._openai([], tokens)
        return counted.replace(name + str(tokens).encode(), name + str(10**30).encode())

    def _abort(self, tokens: int) -> bytes:
        """A request that the server gave up: /generate says why."""
        if self._ask.endpoint != "generate":
            return self._chunk("", tokens, tokens, "abort")
        payload = self._generate_chunk(tokens, tokens, "abort")
        payload["meta_info"]["finish_reason"] = {"type": "abort", "message": "out of memory", "status_code": 503}
        return self._data(payload)
