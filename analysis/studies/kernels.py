"""Figure 7: one call of resolve taken apart, over B/k at one batch and over the batch at one B/k, for each model."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from analysis import labels, published
from analysis.canvas import NUMBERS, STYLE
from analysis.studies.base import Plot, Study
from analysis.table import Table

PARTS = {  # measure -> words, colour, marker, line
    "io_us": ("IO (record copies)", "#0072B2", "o", "-"),
    "probe_scan_us": ("probe & scan", "#D55E00", "s", "-"),
    "residual_us": ("hash table & publication", "#009E73", "^", "-"),
    "floor_us": ("floor: selection read, bytes copied", "#8A8A8A", "", ":"),
}
_PUBLISHED_LOOK = {"H200": "*", "GH200": "P"}
_PUBLISHED_NAME = {"glm-5.1-fp8": "glm51"}
_ACROSS = 4  # models side by side
_TERMS = [
    ("resolve", "One call for one layer and the whole batch: selection in, device slots out, misses fetched."),
    ("IO", "Copying the missing records from the host pool; on a GPU, what a call takes beyond one without copies."),
    (
        "scan",
        "Probe & scan: looking for the cache's slots in the selection; choosing victims and updating the LRU order.",
    ),
    ("hash", "Building the hash table of the selection, and publishing the slots."),
    ("floor", "Reading the selection once and plain copies of the missing bytes, on the same device and cores."),
    ("torch", "The torch reference: the same operation, vectorised."),
]


def study(rows: pd.DataFrame) -> Study:
    """Rows of engine=kernels; means over repeats."""
    points = rows.assign(ratio=rows["cache_slots"] / rows["top_k"])
    keys = ["model", "top_k", "ratio", "concurrency", "platform"]
    measures = [*PARTS, "miss_rate", "resolve_us", "replay_us", "reference_us"]
    points = points.groupby(keys, as_index=False)[measures].mean()
    platforms = ", ".join(sorted(set(points["platform"])))
    return Study(
        title=f"Resolve, taken apart, on {platforms}",
        plots=_plots(points, platforms),
        tables=[("Every point", _table(points))],
        notes=[
            "times per call of resolve for one layer, in microseconds; medians over the steps of a point",
            *(_best_notes(points)),
        ],
        terms=_TERMS,
    )


def _plots(points: pd.DataFrame, platforms: str) -> list[Plot]:
    models = list(dict.fromkeys(points.sort_values("top_k", ascending=False)["model"]))
    batch, ratio = _nearest(points["concurrency"], 16), _nearest(points["ratio"], 2)
    with mpl.rc_context(STYLE):
        across = min(_ACROSS, len(models))
        figure = Figure(figsize=(max(3.6, 1.9 * across), 4.7), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(2, across, sharey="row", squeeze=False)
        marked = False
        for column, model in enumerate(models[:across]):
            mine = points[points["model"] == model]
            above = mine[mine["concurrency"] == batch].sort_values("ratio")
            below = mine[mine["ratio"] == ratio].sort_values("concurrency")
            _panel(grid[0, column], above, "ratio")
            _panel(grid[1, column], below, "concurrency")
            if batch == 16 and ratio == 2:
                marked |= _mark(grid[0, column], model, batch, ratio)
            grid[0, column].set_title(f"{model}\nk={int(mine['top_k'].iloc[0]):,}", fontsize="small")
            grid[0, column].set_xlabel("B / k")
            grid[1, column].set_xlabel("batch")
        grid[0, 0].set_ylabel(f"µs per call, batch {batch:,g}")
        grid[1, 0].set_ylabel(f"µs per call, B = {ratio:,g}k")
        _legend(figure, points, marked)
    alt = f"time per call by phase for {', '.join(models[:across])} on {platforms}"
    caption = (
        f"One call of resolve by phase. Above: batch {batch:,g}, over the cache ratio B/k. Below: B = {ratio:,g}k, "
        "over the batch. Stars and crosses: the paper's IO time on H200 and GH200."
    )
    return [Plot("figure7", figure, caption, alt)]


def _panel(axes: Axes, points: pd.DataFrame, x: str) -> None:
    for measure, (words, colour, marker, line) in PARTS.items():
        drawn = points.dropna(subset=[measure])
        if len(drawn):
            look = {"marker": marker, "markeredgecolor": "white", "markeredgewidth": 0.5} if marker else {}
            axes.plot(drawn[x], drawn[measure], color=colour, linestyle=line, gid=f"{measure}:{words}", **look)
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(points[x]))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.yaxis.set_major_formatter(NUMBERS)
    sns.despine(ax=axes)


def _mark(axes: Axes, model: str, batch: float, ratio: float) -> bool:
    """The paper's IO times at this batch and ratio; whether there are any for the model."""
    table = published.rows("fig7")
    table = table[(table["system"] == "resolve_io") & (table["model"].map(_PUBLISHED_NAME) == model)]
    for platform, value in zip(table["platform"], table["value"], strict=True):
        axes.plot([ratio], [float(value)], _PUBLISHED_LOOK[platform], color="black", markersize=7, zorder=5)
    return len(table) > 0


def _legend(figure: Figure, points: pd.DataFrame, marked: bool) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle=line, label=words)
        for measure, (words, colour, marker, line) in PARTS.items()
        if points[measure].notna().any()
    ]
    if marked:
        handles += [
            Line2D([], [], color="black", marker=shape, linestyle="", markersize=7, label=f"IO, paper's {platform}")
            for platform, shape in _PUBLISHED_LOOK.items()
        ]
    columns = 3 if figure.get_figwidth() > 5 else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def _nearest(values: pd.Series, wanted: float) -> float:
    """The tested value nearest to the paper's."""
    return min(sorted(set(values)), key=lambda value: abs(value - wanted))


def _table(points: pd.DataFrame) -> Table:
    shown = [
        ("resolve", "resolve_us"),
        ("IO", "io_us"),
        ("scan", "probe_scan_us"),
        ("hash", "residual_us"),
        ("replay", "replay_us"),
        ("floor", "floor_us"),
        ("torch", "reference_us"),
    ]
    headers = [("model", ""), ("B/k", ""), ("batch", ""), ("misses", ""), *((words, "µs") for words, _ in shown)]
    rows = []
    for _, p in points.sort_values(["model", "ratio", "concurrency"]).iterrows():
        cells = [labels.number(p[measure]) for _, measure in shown]
        name = f"{p['model']} (k={int(p['top_k']):,})"
        rows.append([name, f"{p['ratio']:g}", f"{p['concurrency']:,g}", labels.percent(p["miss_rate"]), *cells])
    return Table([*headers, ("over", "floor")], [[*row, _ratio(row[4], row[9])] for row in rows])


def _ratio(above: str, below: str) -> str:
    if labels.MISSING in (above, below):
        return labels.MISSING
    return f"{float(above.replace(',', '')) / float(below.replace(',', '')):.2f}"


def _best_notes(points: pd.DataFrame) -> list[str]:
    """The cache ratio at which a call is cheapest, for each model."""
    found = []
    for model, mine in points.groupby("model"):
        batch = _nearest(mine["concurrency"], 16)
        at = mine[mine["concurrency"] == batch].sort_values("resolve_us")
        if len(at) > 1:
            best = at.iloc[0]
            cost = f"B = {best['ratio']:g}k, {best['resolve_us']:,.0f} µs"
            found.append(f"{model} at batch {batch:,g}: cheapest at {cost}")
    return found
