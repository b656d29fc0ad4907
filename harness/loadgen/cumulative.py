"""Keeps streams short whose every event repeats all that came before, as SGLang's `/generate` sends them.

Such an event holds the whole text and every output id so far, so that a response of n tokens is n^2/2 long:
80 MB for 4,096 tokens. Of all events but the newest only the counts (`meta_info`) are kept.
"""

from __future__ import annotations

import json

from harness.loadgen.reading import Batch

_META = b'"meta_info"'
_DATA = b"data:"
_BLANK = (b"\n\n", b"\n\r\n", b"\r\r")  # what ends an event


class Shortener:
    """Takes the pieces of one response and keeps `pieces` short; `times` stays parallel to it."""

    def __init__(self) -> None:
        self._open: list[bytes] = []  # the pieces of an event that is not complete
        self._cumulative: bool | None = None  # None: not known yet

    def add(self, time_s: float, piece: bytes, times: list[float], pieces: list[bytes | Batch]) -> None:
        """Add what `piece` completes to `pieces`, and forget what it repeats."""
        end = _end_of_events(piece)  # an event is stamped when its end is here
        if not end:
            self._open.append(piece)
            return
        event = b"".join((*self._open, piece[:end])) if self._open else piece[:end]
        self._open = [piece[end:]] if end < len(piece) else []
        if self._cumulative is None:
            self._cumulative = _is_cumulative(event)
        if self._cumulative and pieces and _META in event:
            before = pieces[-1]
            assert isinstance(before, bytes), "/generate's events are not read in batches"
            meta = before.rfind(_META)
            if meta > 0 and b'"error"' not in before:
                pieces[-1] = b"data: {" + before[meta:]
        times.append(time_s)
        pieces.append(event)

    def close(self, time_s: float, times: list[float], pieces: list[bytes | Batch]) -> None:
        """The response has ended: what is left is half an event, or none at all."""
        if self._open:
            times.append(time_s)
            pieces.append(b"".join(self._open))
            self._open.clear()


def _end_of_events(piece: bytes) -> int:
    """Where the last complete event in `piece` ends; 0 without one."""
    return max(piece.rfind(end) + len(end) if end in piece else 0 for end in _BLANK)


def _is_cumulative(event: bytes) -> bool | None:
    """Whether an event repeats the earlier ones; None when it does not show, as the first one cannot."""
    try:
        payload = json.loads(event[event.rfind(_DATA) + len(_DATA) :])
        completed, ids = payload["meta_info"]["completion_tokens"], payload["output_ids"]
    except (ValueError, KeyError, TypeError):
        return None
    return None if completed < 2 else len(ids) == completed
