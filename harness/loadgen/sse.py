"""Server-sent events: from timed pieces of a response body to timed events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

Piece = tuple[float, bytes]  # when the bytes arrived (seconds), the bytes

_OTHER_FIELDS = (b":", b"id", b"retry")  # a comment, and the fields that mean nothing here


class Event(NamedTuple):
    """One event; `time_s` is when the last of its data lines was complete."""

    time_s: float
    data: bytes
    name: bytes  # of the `event:` field, empty without one


class NotSSE(ValueError):
    """A line that no server-sent event can contain."""


def _is_one_payload(piece: bytes) -> bool:
    """Whether a piece is exactly one event with a JSON object, in the usual form: its one line and a blank one."""
    return piece.startswith(b"data: {") and piece.endswith(b"\n\n") and piece.find(b"\n") == len(piece) - 2


class EventSplitter:
    """Cuts a byte stream into events however the network cut it. Lines end in LF or CRLF."""

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._name = b""
        self._time_s = 0.0

    @property
    def between(self) -> bool:
        """Whether nothing of an event is pending."""
        return not (self._tail or self._data or self._name)

    def feed(self, time_s: float, piece: bytes) -> Iterator[Event]:
        """The events `piece` completes. Raises NotSSE, with the line, at a line of no known field."""
        lines = (self._tail + piece).split(b"\n")
        self._tail = lines.pop()
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                if self._data:
                    yield Event(self._time_s, b"\n".join(self._data), self._name)
                self._data, self._name = [], b""
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._time_s = time_s
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif not line.startswith(_OTHER_FIELDS):
                raise NotSSE(line.decode(errors="replace"))

    def close(self) -> Iterator[Event]:
        """A last event whose closing blank line the server left out; half a line is dropped."""
        if self._data:
            yield Event(self._time_s, b"\n".join(self._data), self._name)
        self._data = []


def events(pieces: Iterable[Piece]) -> Iterator[Event]:
    """All events of one response body. Raises NotSSE."""
    splitter = EventSplitter()
    last_s = 0.0
    for last_s, piece in pieces:
        if splitter.between and _is_one_payload(piece):
            yield Event(last_s, piece[6:-2], b"")
        else:
            yield from splitter.feed(last_s, piece)
    yield from splitter.feed(last_s, b"\n")  # the last line may lack its end
    yield from splitter.close()
