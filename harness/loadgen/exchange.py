"""One request and its response as they went over the wire, and how they become a RequestRecord."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from harness.loadgen.counts import Uncountable
from harness.loadgen.reading import Batch, Problem, StreamReading, error_message, one_line
from harness.loadgen.sse import EventSplitter, NotSSE
from harness.records import RequestRecord
from workloads import Prompt

_SLICE = 64  # pieces parsed between two turns of the event loop: well under a millisecond


@dataclass(kw_only=True, slots=True)
class Exchange:
    """Filled in by the client while the request runs. Times are `time.perf_counter()` seconds."""

    request_id: str
    worker: int
    prompt: Prompt
    scheduled_s: float
    sent_s: float | None = None  # None: it never reached a socket
    times_s: list[float] = field(default_factory=list)  # when each of the pieces arrived
    pieces: list[bytes | Batch] = field(default_factory=list)  # of a 200 response's body
    end_s: float = 0.0
    problem: Problem | None = None  # what failed before or outside the stream's content
    broken: str | None = None  # how the connection broke in the middle, None when it did not
    late: Problem | None = None  # the time limit that ended it, which matters unless all had come by then


async def digest(exchange: Exchange, *, exact: bool, start_s: float) -> tuple[RequestRecord, bool]:
    """The record of a finished exchange, and whether the server held its tokens' times back.

    Parses in small slices with the event loop's turn between them, so that no other stream's
    timestamps wait for it; the raw bytes are dropped. exact: EOS was to be ignored; start_s: the
    zero of the record's times.
    """
    reading = await _read(exchange.times_s, exchange.pieces)
    exchange.times_s, exchange.pieces = [], []
    prompt = exchange.prompt
    problem = exchange.problem or reading.judge(prompt.output_len, exact, exchange.broken, exchange.late)
    record = RequestRecord(
        request_id=exchange.request_id,
        worker=exchange.worker,
        prompt_sha=prompt.sha,
        input_len=prompt.input_len,
        output_len=prompt.output_len,
        scheduled_s=exchange.scheduled_s - start_s,
        sent_s=(exchange.scheduled_s if exchange.sent_s is None else exchange.sent_s) - start_s,
        end_s=exchange.end_s - start_s,
        prompt_tokens=reading.prompt_tokens,
        output_tokens=reading.completion_tokens,
        finish_reason=reading.finish_reason,
        output_text=reading.text,
    )
    if problem:
        record.error, record.error_detail = problem
    try:
        counts = reading.count()
    except Uncountable:  # only a failed request gets here; its class is set above
        return record, False
    record.chunk_times_s = [time_s - start_s for time_s in counts.times_s]
    record.chunk_tokens = counts.tokens
    record.count_source = counts.source
    return record, counts.held_back


async def _read(times_s: list[float], pieces: list[bytes | Batch]) -> StreamReading:
    reading, splitter = StreamReading(), EventSplitter()
    try:
        for number, (time_s, piece) in enumerate(zip(times_s, pieces, strict=True), start=1):
            if isinstance(piece, Batch):
                reading.add_batch(piece)
            else:
                for event in splitter.take(time_s, piece):
                    reading.add(event)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        for event in splitter.close(times_s[-1] if times_s else 0.0):
            reading.add(event)
    except NotSSE as line:
        if reading.problem is None:
            reading.problem = _not_sse(pieces, str(line))
    await asyncio.sleep(0)
    return reading


def _not_sse(pieces: list[bytes | Batch], line: str) -> Problem:
    """The problem of a 200 response that is no event stream: often an error object as plain JSON."""
    try:
        body = json.loads(b"".join(piece for piece in pieces if isinstance(piece, bytes)))
    except ValueError:
        body = None
    message = error_message(body) if isinstance(body, dict) else None
    if message:
        return ("stream_error", message)
    return ("malformed", f"not a server-sent event: {one_line(line, 80)}")
