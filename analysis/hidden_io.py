"""How much of the IO that synchronous misses expose a prefetch hid, as in the paper's section 4.6."""

from __future__ import annotations

import pandas as pd

from analysis import labels
from analysis.frame import Group
from analysis.table import Table

_IO, _TPOT = "exposed_io_ms_per_token", "mean_tpot_ms"
TITLE = "IO that prefetch hid"
TERMS = (
    "IO: milliseconds each token waited for records; TPOT in milliseconds.",
    "Hidden: the part of sync's exposed IO that prefetch does not expose. Gap closed: of the TPOT that the oracle has "
    "less than sync, how much prefetch saves.",
)
_SYNC, _PREFETCH, _ORACLE = "hisparse_sync", "hisparse_prefetch", "no_io_oracle"


def has_prefetch(group: Group) -> bool:
    return any(series.system == _PREFETCH for series in group.series)


def table(group: Group) -> Table | None:
    """One line per prefetch series and concurrency at which sync of the same B is ok too; None without any."""
    rows: list[list[str]] = []
    for i, series in enumerate(group.series):
        sync, oracle = (_twin(group, i, system) for system in (_SYNC, _ORACLE))
        if series.system != _PREFETCH or sync is None:
            continue
        both = group.line(i, _IO, _TPOT).merge(group.line(sync, _IO, _TPOT), on="concurrency", suffixes=("", "_sync"))
        if oracle is not None:
            bound = group.line(oracle, _TPOT)[["concurrency", _TPOT]].rename(columns={_TPOT: "bound"})
            both = both.merge(bound, on="concurrency", how="left")
        rows += [[series.short, *_cells(point)] for _, point in both.iterrows()]
    headers = [
        ("hidden IO", ""),
        ("C", ""),
        ("IO of", "sync"),
        ("pre-", "fetch"),
        ("hidden", ""),
        ("TPOT", "sync"),
        ("pre-", "fetch"),
        ("oracle", ""),
        ("gap", "closed"),
    ]
    return Table(headers, rows) if rows else None


def _cells(point: pd.Series) -> list[str]:
    waited, tpot, bound = point[f"{_IO}_sync"], point[f"{_TPOT}_sync"], point.get("bound", float("nan"))
    hidden = 1 - point[_IO] / waited if waited > 0 else None
    gap = tpot - bound
    closed = (tpot - point[_TPOT]) / gap if gap > 0 else None
    return [
        f"{int(point['concurrency']):,}",
        labels.number(waited),
        labels.number(point[_IO]),
        labels.percent(hidden),
        *map(labels.number, (tpot, point[_TPOT], bound)),
        labels.percent(closed),
    ]


def _twin(group: Group, index: int, system: str) -> int | None:
    """The series of another system with the same B."""
    slots = group.series[index].cache_slots
    found = [i for i, s in enumerate(group.series) if (s.system, s.cache_slots) == (system, slots)]
    return found[0] if len(found) == 1 else None
