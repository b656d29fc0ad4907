"""Request traces: when requests came and how long they were.

Mooncake (FAST'25 release), JSONL: `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids`, one for
each block of 512 prompt tokens; requests whose first ids are equal share that prefix.
Azure LLM inference traces, CSV: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.schema import WorkloadKind
from workloads.jsonfile import Malformed, csv_rows, json_lines, whole_number
from workloads.lengths import open_text

BLOCK_TOKENS = 512  # of a Mooncake hash id
_MOST_MS = 1e15  # 30,000 years
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace."""

    arrival_s: float  # after the trace's first request
    input_len: int  # tokens
    output_len: int
    hash_ids: tuple[int, ...] = ()  # of its blocks; none: it shares no prefix


def read_trace(path: Path, kind: WorkloadKind) -> list[TraceRequest]:
    """All requests of a trace, by arrival. Raises ValueError, with file and line number for a malformed line."""
    found = _read_mooncake(path) if kind is WorkloadKind.mooncake else _read_azure(path)
    if not found:
        raise ValueError(f"{path}: holds no request")
    found.sort(key=lambda request: request.arrival_s)  # stable: simultaneous ones keep their order
    first = found[0].arrival_s
    return [TraceRequest(r.arrival_s - first, r.input_len, r.output_len, r.hash_ids) for r in found]


def _read_mooncake(path: Path) -> list[TraceRequest]:
    found = []
    for line, record in json_lines(path):
        stamp = record.get("timestamp")
        if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not abs(stamp) < _MOST_MS:
            raise Malformed(path, line, f"timestamp is {stamp!r:.40}, which is no number of milliseconds")
        asked, answered = (
            whole_number(record.get(name), name, path, line, least=1) for name in ("input_length", "output_length")
        )
        found.append(TraceRequest(stamp / 1e3, asked, answered, _hash_ids(record, asked, path, line)))
    return found


def _hash_ids(record: dict[str, Any], input_len: int, path: Path, line: int) -> tuple[int, ...]:
    ids = record.get("hash_ids")
    if not isinstance(ids, list):
        raise Malformed(path, line, f"hash_ids is {ids!r}, which is no list")
    found = tuple(whole_number(i, "a hash id", path, line, least=0) for i in ids)
    blocks = -(-input_len // BLOCK_TOKENS)
    if len(found) != blocks:
        raise Malformed(
            path, line, f"{len(found)} hash_ids for {input_len} tokens, which are {blocks} blocks of {BLOCK_TOKENS}"
        )
    return found


def _read_azure(path: Path) -> list[TraceRequest]:
    found = []
    with open_text(path) as file:
        rows = csv_rows(path, file)
        header = next(rows)[1]
        missing = [name for name in _AZURE if name not in header]
        if missing:
            raise Malformed(path, 1, f"no column {missing[0]}; the header must be {','.join(_AZURE)}")
        for line, row in rows:
            asked, answered = (whole_number(row[name], name, path, line, least=1) for name in _AZURE[1:])
            found.append(TraceRequest(_azure_time_s(row["TIMESTAMP"], path, line), asked, answered))
    return found


def _azure_time_s(text: str | None, path: Path, line: int) -> float:
    """Seconds of `2023-11-16 18:17:03.9799600`; a time zone (the 2024 traces have one) may follow."""
    try:
        when = datetime.fromisoformat((text or "").strip())
    except ValueError as error:
        raise Malformed(path, line, f"TIMESTAMP is {text!r}, which is no date and time") from error
    return (when - datetime(1970, 1, 1, tzinfo=when.tzinfo)).total_seconds()
