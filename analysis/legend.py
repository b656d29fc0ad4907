"""The legend below the axes: each system once, then what the looks of lines mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.frame import Group

DECODE_ONLY = "decode_only_throughput"
DECODE_LOOK = {
    "linestyle": (0, (4, 2)),
    "linewidth": 1.0,
    "markersize": 4.0,
    "markerfacecolor": "white",
    "markeredgewidth": 0.8,
}
IDEAL = "ideal"
IDEAL_LOOK = {"color": "#222222", "linestyle": (0, (2.5, 2.5)), "linewidth": 0.7}
_MOST_LINES = 5
_MOST_OF_ONE_SYSTEM = 3


def draws_decode_only(group: Group) -> bool:
    """Whether a second, decode-only line for every series still leaves a panel that can be read."""
    of_one = max(Counter(series.system for series in group.series).values())
    return len(group.series) <= _MOST_LINES and of_one <= _MOST_OF_ONE_SYSTEM


def add(figure: Figure, grid: Sequence[Axes], columns: int, group: Group) -> None:
    """Write the legend of the lines in `grid`, which has `columns` columns, below the axes."""
    entries = {words: line for axes in grid for line, words in zip(*axes.get_legend_handles_labels(), strict=True)}
    gids = {str(line.get_gid()).partition(":")[0] for axes in grid for line in axes.get_lines()}
    if DECODE_ONLY in gids:
        grey = {"color": "#777777", "marker": "o"}
        # no line beside the first: systems have line styles of their own
        filled = Line2D([], [], linestyle="none", markeredgecolor="white", markeredgewidth=0.5, **grey)
        entries["filled: prefill and decode"] = filled
        entries["hollow, dashed: decode steps only"] = Line2D([], [], **DECODE_LOOK, **grey)
    elif "output_throughput" in gids and not draws_decode_only(group) and group.points[DECODE_ONLY].notna().any():
        entries["decode steps only: in the table"] = Line2D([], [], linestyle="none")
    if IDEAL in gids:
        entries["every request in flight runs"] = Line2D([], [], **IDEAL_LOOK)
    if group.link:
        entries[group.link] = Line2D([], [], linestyle="none")
    fit = 3 if columns > 1 and max(map(len, entries)) <= 34 else 2
    one_row = max(map(len, entries)) > 32 and columns == 1
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=1 if one_row else fit,
        frameon=False,
        fontsize="x-small" if columns == 1 else "small",
        handlelength=2.4,
        columnspacing=1.2,
    )
