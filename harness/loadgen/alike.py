"""Reads events that are one another's copies but for their text and their numbers, without parsing each.

All chunks of a stream but its first and last are. What one of them was parsed to fixes which bytes stay: events made
of these bytes and of one text and some numbers mean the same, with that text and those numbers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from operator import sub

import orjson

from harness.loadgen.reading import MOST_TOKENS, Batch, StreamReading
from harness.loadgen.sse import Event

USUAL_END = b"}\n\n\r\n"
"""A JSON event's end and its HTTP chunk's. No chunked response ends like this (before its last CRLF there is another),
and it is neither `data: [DONE]` nor a comment."""

_VARIES = re.compile(
    r'"(?:text|content|reasoning_content|reasoning)": ?"(?P<text>(?:[^"\\]|\\.)*)"'
    r'|"(?P<name>\w*tokens)": ?(?P<count>[0-9]+)'
    r'|"id": ?"(?P<id>[^"\\]*)"'
    r'|"created": ?(?P<created>[0-9]+)'
)
_HEAD = r"(?:\A|(?<=\n\n\r\n))([0-9a-fA-F]+)\r\n"  # of a chunk that begins here, or where the one before ended
_KINDS = {  # what stands where
    "text": r'([^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*)',
    "count": r"(0|[1-9][0-9]{0,9})",
    "id": r'[^"\\\x00-\x1f]*',
    "created": r"(?:0|[1-9][0-9]*)",
}
_TEXT, _COMPLETED, _PROMPT = "text", "completion_tokens", "prompt_tokens"
_MOST_KNOWN = 256
_MOST_KINDS = 8  # of events in one response; where there are more, looking for copies is in vain


def by_event(times_s: list[float], wire: bytes, ends: list[int]) -> tuple[list[float], bytes, list[int]]:
    """Reads (as `Copies.read` has them) cut anew at every usual end, where some brought several events.

    An event has come when its last byte has. `wire` has a usual end at its own.
    """
    if wire.count(USUAL_END) == len(ends):
        return times_s, wire, ends
    cuts = [found.end() for found in re.finditer(USUAL_END, wire)]
    return [times_s[bisect_left(ends, cut)] for cut in cuts], wire, cuts


class Copies:
    """Reads one response's events that came each in an HTTP chunk of its own, where they are copies."""

    def __init__(self) -> None:
        self._alike: _Alike | None = None
        self._refused = b""  # the last chunk that can have no copies
        self._kinds = 0

    @property
    def hopeless(self) -> bool:
        """Whether this response has other events."""
        return self._kinds >= _MOST_KINDS

    def read(self, times_s: list[float], wire: bytes, ends: Sequence[int]) -> Batch | None:
        """What chunks say that came at `times_s`, each until one of `ends`. None, if any is something else."""
        found = self._alike.read(times_s, wire, ends) if self._alike else None
        if found is None and (self._alike is None or len(ends) == 1) and not self.hopeless:
            first = wire[: ends[0]]
            if first != self._refused:
                self._kinds += 1
                self._alike = _Alike.to(first.partition(b"\r\n")[2].removesuffix(b"\r\n"))
                self._refused = b"" if self._alike else first
                found = self._alike.read(times_s, wire, ends) if self._alike else None
        return found


class _Alike:
    """Events like one that is known."""

    def __init__(self, pattern: str, names: list[str]) -> None:
        """pattern: of a chunk, with a group for its size and one for each of `names`."""
        self._pattern = re.compile(pattern)
        self._names = names

    @classmethod
    def to(cls, event: bytes) -> _Alike | None:
        """Those like `event` (with its blank line); None if it is no chunk with nothing but its text and its counts."""
        try:
            whole = event.decode()
        except UnicodeDecodeError:
            return None
        pattern, names, end = _HEAD, [], 0
        for found in _VARIES.finditer(whole):
            kind = next(kind for kind in _KINDS if found[kind] is not None)
            start, stop = found.span(kind)
            pattern += re.escape(whole[end:start]) + _KINDS[kind]
            names += [found["name"] or _TEXT] if kind in ("text", "count") else []
            end = stop
        pattern += re.escape(whole[end:] + "\r\n")
        usual = whole.startswith("data: {") and whole.endswith("}\n\n") and whole.count("\n") == 2
        if not usual or _TEXT not in names or len(set(names)) < len(names):
            return None
        known = _KNOWN.get(pattern)  # by other responses of the server
        if known is None:
            known = cls(pattern, names)
            if not known._agrees(event):
                return None
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[pattern] = known
        return known

    def _agrees(self, event: bytes) -> bool:
        """Whether reading `event` as a copy of itself gives what parsing it does."""
        if b'"meta_info"' in event:  # of /generate: what its text means depends on the one before
            return False
        parsed = StreamReading()
        parsed.add(Event(0.0, event.removeprefix(b"data: ").removesuffix(b"\n\n"), b""))
        wire = b"%x\r\n%b\r\n" % (len(event), event)
        batch, read = self.read([0.0], wire, [len(wire)]), StreamReading()
        if batch is None:
            return False
        read.add_batch(batch)
        return read == parsed and len(read.deltas) == 1

    def read(self, times_s: list[float], wire: bytes, ends: Sequence[int]) -> Batch | None:
        """As `Copies.read`."""
        count = len(ends)
        try:
            rows = self._pattern.findall(wire.decode())
            if len(rows) != count or wire.count(USUAL_END) != count:
                return None
            heads, *columns = zip(*rows, strict=True)
            found = dict(zip(self._names, columns, strict=True))
            texts = _strings(found.pop(_TEXT))
        except ValueError:  # of Unicode, of JSON
            return None
        sizes = map(sub, map(sub, ends, [0, *ends]), map(len, heads))  # of events, with two line ends
        if list(map(int, heads, repeat(16))) != [size - 4 for size in sizes]:
            return None
        numbers = {name: list(map(int, column)) for name, column in found.items()}
        if any(max(column) > MOST_TOKENS for column in numbers.values()):
            return None
        return Batch(times_s, texts, numbers.get(_COMPLETED), numbers.get(_PROMPT))


_KNOWN: dict[str, _Alike] = {}


def _strings(column: Sequence[str]) -> list[str]:
    """What JSON strings say, given what is between their quotes, which is without any. Raises ValueError."""
    texts: list[str] = orjson.loads('["' + '","'.join(column) + '"]')
    return texts
