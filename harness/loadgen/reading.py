"""What one streamed response said: its text, its tokens over time, and what was wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from harness.loadgen.counts import Deltas, TokenCounts, Uncountable, count_tokens
from harness.loadgen.sse import Event

_DONE = b"[DONE]"
MOST_TOKENS = 1 << 31  # of one request; a count beyond it is none
_CUT_SHORT = "the stream ended in [DONE] without a finish reason"
_BROKEN_OFF = {"abort", "error", "cancelled"}  # finish reasons of a request the server gave up

Problem = tuple[str, str]  # failure class (RequestRecord.error), one line of detail


def one_line(text: object, limit: int = 160) -> str:
    """`text` as one short line for an error message."""
    return " ".join(str(text).split())[:limit]


def _loads(data: bytes) -> Any:
    """JSON, fast; what only Python's own reader takes (half a surrogate pair, as some servers stream) is left to it."""
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)


def error_message(payload: dict[str, Any]) -> str | None:
    """The message of an OpenAI-shaped error object (or the bare one vLLM once sent), else None."""
    error = payload.get("error")
    if not error and payload.get("object") != "error":
        return None
    source = error if isinstance(error, dict) else payload
    return one_line(source.get("message") or error)


def carries_token(event: Event) -> bool:
    """Whether an event brings output, by itself; anything unreadable does not."""
    reading = StreamReading()
    reading.add(event)
    return any(reading.deltas.texts) or any(reading.deltas.completed)


class Batch(NamedTuple):
    """Chunks with nothing but a text and counts, one entry each; None for counts that they have not."""

    times_s: list[float]
    texts: list[str]
    completed: list[int] | None  # `completion_tokens`
    prompt: list[int] | None  # `prompt_tokens`


@dataclass(slots=True)
class StreamReading:
    """Takes the events of one response in order (`add`), then judges them (`judge`)."""

    deltas: Deltas = field(default_factory=Deltas)
    done: bool = False  # [DONE] was seen
    finish_reason: str | None = None
    prompt_tokens: int | None = None  # the server's last word
    completion_tokens: int | None = None  # the server's last word
    problem: Problem | None = None  # the first one
    _so_far: str = ""  # the text of a stream whose every event repeats it
    _counts: TokenCounts | None = None

    def add(self, event: Event) -> None:
        """Take one event; what follows [DONE] or a problem is ignored."""
        if self.done or self.problem:
            return
        self._counts = None
        if event.data == _DONE:
            self.done = True
            return
        try:
            self._add_payload(event, _loads(event.data))
        except ValueError:
            self.problem = ("malformed", f"an event is not JSON: {one_line(event.data, 80)}")

    def add_batch(self, batch: Batch) -> None:
        """Take several events at once."""
        if self.done or self.problem:
            return
        self._counts = None
        self.deltas.times_s += batch.times_s
        self.deltas.texts += batch.texts
        self.deltas.completed += batch.completed or [None] * len(batch.texts)
        prompt = next(filter(None, reversed(batch.prompt or ())), None)
        self._note(prompt, batch.completed[-1] if batch.completed else None)

    def _add_payload(self, event: Event, payload: Any) -> None:
        """Take an event that is JSON."""
        if not isinstance(payload, dict):
            self.problem = ("malformed", f"an event is not a JSON object: {one_line(event.data, 80)}")
            return
        if "error" in payload or event.name or payload.get("object") == "error":
            message = error_message(payload) or (one_line(payload) if event.name == b"error" else None)
            if message:
                self.problem = ("stream_error", message)
                return
        try:
            self._take(event.time_s, payload)
        except _Miscounted as error:
            self.problem = ("malformed", f"{error}: {one_line(event.data, 80)}")
        except (AttributeError, TypeError, KeyError, ValueError):
            self.problem = ("malformed", f"an event is not a completion chunk: {one_line(event.data, 80)}")

    def _take(self, time_s: float, payload: dict[str, Any]) -> None:
        if "meta_info" in payload:
            self._take_generate(time_s, payload)
            return
        usage = payload.get("usage")
        completed = None
        if usage:
            completed = _tokens(usage, "completion_tokens")
            self._note(_tokens(usage, "prompt_tokens"), completed)
        for choice in payload["choices"] if not usage else payload.get("choices", ()):
            self.deltas.add(time_s, _text(choice), completed)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_generate(self, time_s: float, payload: dict[str, Any]) -> None:
        """An event of SGLang's `/generate`: `text` and `output_ids` so far (or since the last one), and counts."""
        meta = payload["meta_info"]
        reason = meta.get("finish_reason")
        if isinstance(reason, dict):
            if reason["type"] in _BROKEN_OFF:
                self.problem = (
                    "stream_error",
                    one_line(reason.get("message") or f"finish_reason is {reason['type']!r}"),
                )
                return
            self.finish_reason = reason["type"]
        completed = _tokens(meta, "completion_tokens")
        self._note(_tokens(meta, "prompt_tokens"), completed)
        text, ids = payload.get("text") or "", payload.get("output_ids")
        if len(ids) == completed if ids is not None else text.startswith(self._so_far):
            self._so_far, text = text, text.removeprefix(self._so_far)
        self.deltas.add(time_s, text, completed)

    def _note(self, prompt: int | None, completed: int | None) -> None:
        """What the server says it has counted; where it says nothing its last word stands."""
        self.prompt_tokens = prompt or self.prompt_tokens
        self.completion_tokens = self.completion_tokens if completed is None else completed

    @property
    def text(self) -> str:
        """Everything generated, reasoning included."""
        return "".join(self.deltas.texts)

    def count(self) -> TokenCounts:
        """Tokens over time, of all that was added. Raises Uncountable."""
        if self._counts is None:
            self._counts = count_tokens(self.deltas, self.completion_tokens)
        return self._counts

    def judge(self, asked: int, exact: bool, broken: str | None = None, late: Problem | None = None) -> Problem | None:
        """What makes this response a failure, None for nothing.

        asked: output tokens wanted; exact: EOS was to be ignored, so exactly as many must come;
        broken: how the connection broke, None when the body ended in order; late: the time limit that ended it.
        """
        if self.problem:
            return self.problem
        if late and not self.done:
            return late
        if not self.done and (broken or not self.finish_reason):
            return ("early_stop", broken or "the stream ended without [DONE] and without a finish reason")
        if self.finish_reason in _BROKEN_OFF:
            return ("stream_error", f"finish_reason is {self.finish_reason!r}")
        try:
            got = sum(self.count().tokens)
        except Uncountable as error:
            return ("malformed", str(error)) if self.finish_reason else ("early_stop", f"{_CUT_SHORT}; {error}")
        if got < asked and not self.finish_reason and (exact or not got):
            return ("early_stop", f"{_CUT_SHORT}, after {got} of {asked} tokens")
        if (exact and got != asked) or not 0 < got <= asked:
            return ("wrong_length", f"{got} tokens came, {asked} were asked for")
        return None


class _Miscounted(ValueError):
    """A count that is no number of tokens."""


def _tokens(usage: dict[str, Any], name: str) -> int | None:
    """A count of `usage`, None where it is left out or null. Raises _Miscounted."""
    count = usage.get(name)
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count <= MOST_TOKENS or count % 1:
        raise _Miscounted(f"{name} is {one_line(repr(count), 30)}, no number of tokens")
    return int(count)


def _text(choice: dict[str, Any]) -> str:
    """A chunk's output: completions carry `text`, chat a `delta` whose reasoning counts as output too."""
    delta = choice.get("delta")
    if delta is None:
        text = choice.get("text") or ""
        if not isinstance(text, str):
            raise TypeError("text is not a string")
        return text
    parts = [delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content"), delta.get("refusal")]
    parts += [call["function"].get("arguments") for call in delta.get("tool_calls") or ()]
    return "".join(part for part in parts if part)
