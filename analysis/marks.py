"""Published values as stars in the figures: where a paper ran the group's model, platform and input length.

A star over concurrency lies at the paper's concurrency, or at ours of the best throughput for a published peak. In the
latency panels, whose other axis is throughput, it lies at the paper's throughput at that concurrency, or at ours where
the paper gives none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes

from analysis import legend, published
from analysis.comparison import MODELS, PLATFORMS
from analysis.frame import Group

_METRICS = {
    "output_throughput": "throughput",
    "decode_only_throughput": "decode_only_throughput",
    "mean_ttft_ms": "mean_ttft",
    "mean_tpot_ms": "mean_tpot",
    "exposed_io_ms_per_token": "exposed_io_per_token",  # as the paper has it: TPOT over the oracle's
}
_MS = {"s": 1e3, "ms": 1.0, "tok/s": 1.0}


def over_concurrency(axes: Axes, group: Group, measure: str) -> None:
    """Stars of a measure against concurrency."""
    for index, concurrency, value in _found(group, measure):
        line = group.line(index, measure)
        at = concurrency if concurrency is not None else _best(line)
        _star(axes, group, index, at, value, hollow=measure == legend.DECODE_ONLY)


def over_throughput(axes: Axes, group: Group, measure: str) -> None:
    """Stars of a latency against throughput at the same concurrency: the paper's, else ours."""
    theirs = {(index, concurrency): rate for index, concurrency, rate in _found(group, "output_throughput")}
    for index, concurrency, value in _found(group, measure):
        line = group.line(index, "output_throughput", measure)
        ours = line[line["concurrency"] == concurrency]["output_throughput"]
        at = theirs.get((index, concurrency), float(ours.iloc[0]) if len(ours) else None)
        _star(axes, group, index, at if len(ours) else None, value)


def peak(group: Group, index: int) -> float | None:
    """The published peak throughput of a series, tokens/s; None where there is none."""
    found = [v for i, concurrency, v in _found(group, "output_throughput") if i == index and concurrency is None]
    return found[0] if found else None


def star(axes: Axes, colour: str, x: float, y: float, *, hollow: bool = False) -> None:
    """One published value; hollow, as its line is: of decode steps alone."""
    look = legend.PUBLISHED_LOOK | ({"markerfacecolor": "white", "markeredgecolor": colour} if hollow else {})
    axes.plot([x], [y], color=colour, zorder=6, gid=f"{legend.PUBLISHED}:{y:g}", **look)


def _star(axes: Axes, group: Group, index: int, x: float | None, y: float, hollow: bool = False) -> None:
    if x is not None:
        star(axes, group.series[index].colour, x, y, hollow=hollow)


def _best(line: Any) -> float | None:
    return float(line.loc[line["output_throughput"].idxmax(), "concurrency"]) if len(line) else None


def _found(group: Group, measure: str) -> Iterator[tuple[int, int | None, float]]:
    """(series, concurrency or None for a peak, value in our unit); a paper's `hisparse` is our `hisparse_sync`."""
    table = published.table()
    table = table[
        (table["metric"] == _METRICS[measure])
        & (table["model"].map(MODELS) == group.key["model"])
        & (table["platform"].map(PLATFORMS) == group.key["platform"])
        & (table["input_len"] == str(group.key["input_len"]))
    ]
    for row in table.to_dict("records"):
        system = "hisparse_sync" if row["system"] == "hisparse" else row["system"]
        concurrency = int(row["concurrency"]) if row["concurrency"].isdigit() else None
        for index, series in enumerate(group.series):
            if series.system == system:
                yield index, concurrency, float(row["value"]) * _MS[row["unit"]]
                break
