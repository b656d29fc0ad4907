"""Server-sent events: from timed pieces of a response body to timed events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

Piece = tuple[float, bytes]  # when the bytes arrived (seconds), the bytes

_BOM = b"\xef\xbb\xbf"
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
    """Cuts a byte stream into events however the network cut it. Lines end in LF, CRLF or CR (HTML standard, 9.2.5)."""

    def __init__(self) -> None:
        self._tail = b""
        self._begun = False  # what can be a byte order mark is behind us
        self._skip_lf = False  # the last line ended in a CR, whose LF may still come
        self._data: list[bytes] = []
        self._name = b""
        self._time_s = 0.0

    @property
    def between(self) -> bool:
        """Whether nothing of an event is pending."""
        return not (self._tail or self._data or self._name)

    def feed(self, time_s: float, piece: bytes) -> Iterator[Event]:
        """The events `piece` completes. Raises NotSSE, with the line, at a line of no known field."""
        for line in self._lines(piece):
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

    def _lines(self, piece: bytes) -> list[bytes]:
        """The lines that `piece` completes."""
        if self._skip_lf and piece:
            piece, self._skip_lf = piece.removeprefix(b"\n"), False
        data = self._tail + piece
        if not self._begun:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._tail = data
                return []
            data, self._begun = data.removeprefix(_BOM), True
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        self._tail = lines.pop()
        return lines

    def take(self, time_s: float, piece: bytes) -> Iterator[Event]:
        """As `feed`, quickly where the piece is one whole event."""
        if self.between and _is_one_payload(piece):
            yield Event(time_s, piece[6:-2], b"")
        else:
            yield from self.feed(time_s, piece)

    def close(self, time_s: float) -> Iterator[Event]:
        """A last event whose closing blank line, or line end, the server left out."""
        yield from self.feed(time_s, b"\n")
        if self._data:
            yield Event(self._time_s, b"\n".join(self._data), self._name)
        self._data = []


def events(pieces: Iterable[Piece]) -> Iterator[Event]:
    """All events of one response body. Raises NotSSE."""
    splitter = EventSplitter()
    last_s = 0.0
    for last_s, piece in pieces:
        yield from splitter.take(last_s, piece)
    yield from splitter.close(last_s)
