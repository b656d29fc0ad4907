"""Takes one response in while it runs: pieces with their times, the time limits, and what went wrong."""

from __future__ import annotations

import json
import re
import time
from operator import sub

from harness.loadgen.alike import Copies
from harness.loadgen.connection import Connection
from harness.loadgen.cumulative import Shortener
from harness.loadgen.deadline import Deadline
from harness.loadgen.exchange import Exchange
from harness.loadgen.gather import Gatherer
from harness.loadgen.progress import Progress
from harness.loadgen.reading import Batch, carries_token, error_message, one_line
from harness.loadgen.response import Response
from harness.loadgen.sse import EventSplitter, NotSSE
from harness.schema import LoadConfig

_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
_DONE_BYTES = 16  # that a piece may lack of it


class Reception:
    """Of one request on one connection. `response` is what the connection feeds."""

    def __init__(
        self,
        connection: Connection,
        exchange: Exchange,
        limits: LoadConfig,
        progress: Progress,
        gatherer: Gatherer,
        started_s: float,
        *,
        shorten: bool,
        grace_s: float,
    ) -> None:
        self._connection, self._exchange = connection, exchange
        self._progress, self._gatherer = progress, gatherer
        self._shortener = Shortener() if shorten else None
        self._splitter: EventSplitter | None = EventSplitter()  # until the first token has come
        self._copies = Copies()
        self._last_s = 0.0  # when the last piece came
        self._end_of_last = b""
        self._grace_s = grace_s
        self.done_s: float | None = None  # when [DONE] came
        self._deadline = Deadline(limits, started_s, look=connection.look, late=connection.finish)
        self.response = Response(self._take, self._take_events)

    def sent(self, sent_s: float) -> None:
        self._exchange.sent_s = self._deadline.event_s = sent_s

    def _take(self, time_s: float, piece: bytes) -> None:
        """A piece of the body. Only what precedes the first token is parsed here."""
        exchange = self._exchange
        if self._shortener:
            self._shortener.add(time_s, piece, exchange.times_s, exchange.pieces)
        else:
            exchange.times_s.append(time_s)
            exchange.pieces.append(piece)
        self._gatherer.gaps_s.append(time_s - self._last_s)
        self._last_s = time_s
        self._look_into(time_s, piece)

    def _take_events(self, times_s: list[float], wire: bytes, ends: list[int]) -> bool:
        """More events after the first token, each an HTTP chunk; False, with nothing done, if they are not known."""
        batch = self._copies.read(times_s, wire, ends) if self._end_of_last.endswith(b"\n\n") else None
        if batch is None:
            self.response.can_wait = not self._copies.hopeless
            return False
        exchange = self._exchange
        exchange.times_s.append(times_s[-1])
        exchange.pieces.append(batch)
        self._gatherer.gaps_s += map(sub, times_s, [self._last_s, *times_s])
        self._last_s = self._deadline.event_s = times_s[-1]
        self._progress.events += len(ends)
        return True

    def _look_into(self, time_s: float, piece: bytes) -> None:
        """See what a piece means to the time limits."""
        deadline = self._deadline
        events = piece.count(b"data:")
        self._progress.events += events
        if self._splitter is None:
            if events:  # a comment that keeps the connection open is no event
                deadline.event_s = time_s
        elif self.response.status == 200 and _has_token(self._splitter, time_s, piece):
            self._splitter = None
            deadline.event_s = time_s
            deadline.first_token()
            self.response.can_wait = self.response.chunked and not self._shortener  # which has to forget at once
        piece = self._end_of_last + piece
        self._end_of_last = piece[-_DONE_BYTES:]
        if self.done_s is None and _DONE.search(piece):
            self.done_s = deadline.event_s = time_s
            deadline.done(self._grace_s)

    def end(self) -> None:
        """No more is taken."""
        self._deadline.cancel()
        exchange = self._exchange
        if self._shortener:
            self._shortener.close(self.response.now_s, exchange.times_s, exchange.pieces)

    def conclude(self) -> None:
        """Write into the exchange how it ended."""
        exchange, response, connection = self._exchange, self.response, self._connection
        exchange.end_s = self.done_s or (response.now_s if response.complete else time.perf_counter())
        self._gatherer.last_took_s = exchange.end_s - (exchange.sent_s or exchange.end_s)
        exchange.broken = connection.broken
        encoding = response.headers.get("content-encoding", "identity")
        if response.status >= 400:
            kind = "http_4xx" if response.status < 500 else "http_5xx"
            exchange.problem = (kind, f"HTTP {response.status}: {_explain(exchange.pieces)}")
        elif response.status >= 300:
            where = response.headers.get("location", "nowhere")
            exchange.problem = ("malformed", f"HTTP {response.status} to {one_line(where, 80)}; give the final URL")
        elif connection.malformed:
            exchange.problem = ("malformed", connection.malformed)
        elif encoding != "identity":
            exchange.problem = ("malformed", f"the body is {encoding}-encoded, which was not accepted")
        elif not response.complete and not exchange.broken:
            exchange.late = self._deadline.problem
            connection.close()
        if response.status >= 300 or exchange.problem:
            exchange.times_s, exchange.pieces = [], []


def _has_token(splitter: EventSplitter, time_s: float, piece: bytes) -> bool:
    try:
        return any(carries_token(event) for event in splitter.feed(time_s, piece))
    except NotSSE:  # whatever it is, it has begun; it is judged when it has ended
        return True


def _explain(pieces: list[bytes | Batch]) -> str:
    """An error body in one line: its message when it is OpenAI-shaped."""
    body = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    try:
        payload = json.loads(body)
    except ValueError:
        payload = None
    message = error_message(payload) if isinstance(payload, dict) else None
    return message or one_line(body.decode(errors="replace")) or "no explanation"
