"""Traces that come with the project, by name: `shipped:smollm2_quest`."""

from __future__ import annotations

from pathlib import Path

from workloads.traces.layout import TraceError

_FOLDER = Path(__file__).parent / "data"
_PREFIX = "shipped:"


def find_trace(name: str) -> Path:
    """The file that a trace's name means: `shipped:NAME`, else a path. Raises TraceError for an unknown NAME."""
    if not name.startswith(_PREFIX):
        return Path(name).expanduser()
    path = _FOLDER / f"{name.removeprefix(_PREFIX)}.trace"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in _FOLDER.glob("*.trace"))) or "none"
        raise TraceError(f"{name}: no such trace comes with the project; there are {there}")
    return path
