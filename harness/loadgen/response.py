"""One HTTP response as the parser calls it: its head, and its body in pieces with their times."""

from __future__ import annotations

from collections.abc import Callable

import httptools


class Response:
    """What one response brought, as the HTTP parser calls it; its body stays in pieces with their times."""

    def __init__(
        self, on_piece: Callable[[float, bytes], None], on_events: Callable[[list[float], bytes, list[int]], bool]
    ) -> None:
        """on_piece: gets each piece of the body with its time; on_events: as `take_usual`, if it knows such events."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.started = False  # the first byte is here
        self.in_body = False
        self.complete = False
        self.keeps_alive = False  # the connection can carry another request
        self.now_s = 0.0  # arrival of the bytes being parsed
        self.can_wait = False  # set by its owner: while pieces have the usual end, nothing depends on them at once
        self._between = False  # the last that the parser saw was the end of a chunk
        self._on_piece, self._on_events = on_piece, on_events
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, time_s: float, data: bytes) -> None:
        """Take bytes off the wire. Raises httptools.HttpParserError."""
        self.now_s = time_s
        self.started = True
        self._between = False
        self._parser.feed_data(data)
        self._between = self._between and data.endswith(b"\n")  # else the next one's head has begun

    def take_usual(self, times_s: list[float], wire: bytes, ends: list[int]) -> bool:
        """Take reads that are each one whole HTTP chunk with one usual event. False, with nothing done, for others.

        wire: all reads, each until one of `ends`. The parser would be after them as it was before: it is spared.
        """
        if not self._between or not self._on_events(times_s, wire, ends):
            return False
        self.now_s = times_s[-1]
        return True

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.in_body = self.status >= 200
        if not self.in_body:  # 100 Continue and the like announce another response
            self.headers.clear()

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_body(self, body: bytes) -> None:
        self._on_piece(self.now_s, body)

    def on_message_complete(self) -> None:
        self.complete = self.in_body
        self.keeps_alive = self.complete and self._parser.should_keep_alive()  # the parser forgets it after this

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the end of the connection ends the body."""
        return self.in_body and "content-length" not in self.headers and not self.chunked

    @property
    def chunked(self) -> bool:
        """Whether the body comes in HTTP's chunks."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()
