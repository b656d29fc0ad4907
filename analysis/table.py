"""A table as plain cells, which the terminal and the report both show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown. `headers` are (words, unit); the first `left` columns are words."""

    headers: list[tuple[str, str]]
    rows: list[list[str]]
    left: int = 1
