"""Reads events that are one another's copies but for their text and their counts of tokens, without parsing each.

All chunks of a stream but its first and last are. What one of them was parsed to fixes which bytes stay: events made
of these bytes and of one text and some numbers mean the same, with that text and those numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, Self

import orjson

_VARIES = re.compile(
    r'"(?:text|content|reasoning_content|reasoning)": ?"(?P<text>(?:[^"\\]|\\.)*)"'
    r'|"(?P<name>\w*tokens)": ?(?P<count>[0-9]+)'
)
_MARK = "\0"  # no JSON has it, except escaped
_TEXT, _COMPLETED, _PROMPT = "text", "completion_tokens", "prompt_tokens"


class Values(NamedTuple):
    """What varies, one entry an event; None for a count that these events have not."""

    texts: list[str]
    completed: list[int] | None  # `completion_tokens`
    prompt: list[int] | None  # `prompt_tokens`


class Alike:
    """Events like one that is known."""

    def __init__(self, fixed: list[str], names: list[str]) -> None:
        self._fixed, self._names = fixed, names  # what stays; what is between

    @classmethod
    def to(cls, event: bytes) -> Self | None:
        """Those like `event` (one whole event with its blank line); None when it is of another kind.

        It must be a JSON object with one text, and have no count twice.
        """
        try:
            whole = event.decode()
        except UnicodeDecodeError:
            return None
        fixed, names, end = [], [], 0
        for found in _VARIES.finditer(whole):
            name = found["name"] or _TEXT
            start, stop = found.span("count" if found["name"] else "text")
            fixed.append(whole[end:start])
            names.append(name)
            end = stop
        fixed.append(whole[end:])
        usual = fixed[0].startswith("data: {") and fixed[-1].endswith("}\n\n") and whole.count("\n") == 2
        return cls(fixed, names) if usual and _TEXT in names and len(set(names)) == len(names) else None

    def read(self, pieces: Sequence[bytes]) -> Values | None:
        """The values of pieces that are each one such event; None for any others."""
        if not all(piece.endswith(b"}\n\n") for piece in pieces):
            return None
        try:
            columns = self._columns(b"".join(pieces).decode(), len(pieces))
            if columns is None:
                return None
            found = dict(zip(self._names, columns, strict=True))
            texts = _strings(found.pop(_TEXT))
            counts = {name: _numbers(column) for name, column in found.items()}
        except ValueError:  # of Unicode, of JSON
            return None
        if texts is None or None in counts.values():
            return None
        return Values(texts, counts.get(_COMPLETED), counts.get(_PROMPT))

    def _columns(self, whole: str, count: int) -> list[list[str]] | None:
        """What stands in each varying place of `count` events, which are `whole` and nothing else; None otherwise."""
        marked = whole
        for part in self._fixed:
            marked = marked.replace(part, _MARK)
        step = len(self._fixed)
        parts = marked.split(_MARK)
        if len(parts) != count * step + 1:
            return None
        columns = [parts[place::step] for place in range(1, step)]
        again: list[Any] = [repeat(self._fixed[0], count)]
        for column, part in zip(columns, self._fixed[1:], strict=True):
            again += column, repeat(part)
        rebuilt = "".join(chain.from_iterable(zip(*again, strict=False)))
        return columns if rebuilt == whole else None


def _strings(column: list[str]) -> list[str] | None:
    """What JSON strings say, given what is between their quotes; None or ValueError where that is none."""
    together = '["' + '","'.join(column) + '"]'
    if "\\" in together:  # what is escaped could hide where one ends
        return [orjson.loads(f'"{text}"') for text in column]
    texts: list[str] = orjson.loads(together)
    return texts if len(texts) == len(column) else None


def _numbers(column: list[str]) -> list[int] | None:
    """JSON's whole numbers, none negative; None if any is something else. Raises ValueError where one is no JSON."""
    numbers = orjson.loads("[" + ",".join(column) + "]")
    whole = len(numbers) == len(column) and set(map(type, numbers)) == {int} and min(numbers) >= 0
    return numbers if whole else None
