"""What selections cost in quality: agreement with full attention and perplexity over k, for each selector."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from analysis import labels
from analysis.canvas import NUMBERS, STYLE
from analysis.studies.base import Plot, Study
from analysis.table import Table

LOOKS = {  # selector -> words, colour, marker
    "exact_topk": ("exact top-k (ceiling)", "#0072B2", "s"),
    "quest": ("Quest", "#D55E00", "o"),
    "window": ("window (floor)", "#8A8A8A", "^"),
}
_FULL_KV = "full_kv"
_KEYS = ["selector", "top_k", "offload"]
_MEASURES = ["perplexity", "dense_perplexity", "agreement", "scored_tokens"]
_TERMS = [
    ("agreement", "Share of tokens for which the likeliest next token is the one full attention holds likeliest."),
    ("perplexity", "Of the text's own next tokens, given all before them; full attention's is the dotted line."),
]


def study(rows: pd.DataFrame) -> Study:
    """Rows of engine=quality, one model and text; means over repeats and numbers of texts."""
    points = rows.groupby(["model", *_KEYS], as_index=False, dropna=False)[_MEASURES].mean()
    model = ", ".join(sorted(set(points["model"])))
    return Study(
        title=f"Quality of {model} by selector and k",
        plots=_plots(points, model),
        tables=[
            ("Next-token agreement with full attention", _table(points, "agreement", labels.percent)),
            ("Perplexity", _table(points, "perplexity", lambda value: f"{value:.3f}")),
        ],
        notes=[_scored(rows), *_same(points)],
        terms=_TERMS,
    )


def _scored(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    texts, tokens = f"{int(first['concurrency'])} texts", int(first["scored_tokens"])
    after = f"each after {int(first['input_len']):,} tokens or more of {first['workload']}"
    return f"{tokens:,} next tokens of {texts}, {after}"


def _same(points: pd.DataFrame) -> list[str]:
    """Whether each other offload system gives full KV's numbers to the last digit."""
    full = {_cell_key(point): point for _, point in points[points["offload"] == _FULL_KV].iterrows()}
    found: dict[str, list[bool]] = {}
    for _, point in points[points["offload"] != _FULL_KV].iterrows():
        twin = full.get(_cell_key(point))
        if twin is not None:
            equal = all(point[measure] == twin[measure] for measure in _MEASURES)
            found.setdefault(point["offload"], []).append(equal)
    return [
        f"{system}: {sum(equal)} of {len(equal)} cells have exactly the numbers of {_FULL_KV}"
        for system, equal in found.items()
    ]


def _cell_key(point: pd.Series) -> tuple[str, str, str]:
    """What two offload systems have in common."""
    return str(point["model"]), str(point["selector"]), str(point["top_k"])


def _plots(points: pd.DataFrame, model: str) -> list[Plot]:
    drawn = points[(points["offload"] == _FULL_KV) & points["selector"].isin(LOOKS)]
    if drawn.empty:
        return []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 2.7), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        _panel(left, drawn.assign(shown=100 * drawn["agreement"]), "next-token agreement, %")
        _panel(right, drawn.assign(shown=drawn["perplexity"]), "perplexity")
        right.axhline(points["dense_perplexity"].iloc[0], color="black", linestyle=":", linewidth=1)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    caption = "Next-token agreement with full attention, and perplexity (dotted: full attention's), over k."
    return [Plot("quality", figure, caption, f"agreement and perplexity of {model} over k for each selector")]


def _panel(axes: Axes, points: pd.DataFrame, words: str) -> None:
    for selector, (name, colour, marker) in LOOKS.items():
        line = points[points["selector"] == selector].sort_values("top_k")
        if len(line):
            axes.plot(line["top_k"], line["shown"], color=colour, marker=marker, label=name, gid=selector)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(points["top_k"]))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.set_xlabel("k, positions attended to")
    axes.set_ylabel(words)
    sns.despine(ax=axes)


def _table(points: pd.DataFrame, measure: str, shown: Callable[[float], str]) -> Table:
    """A row for each selector and offload system, a column for each k."""

    def cell(point: pd.DataFrame) -> str:
        return "" if point.empty else shown(point[measure].iloc[0])

    ks = sorted({int(k) for k in points["top_k"].dropna()})
    rows = [["dense", _FULL_KV, cell(points[points["selector"] == "dense"]), *[""] * len(ks)]]
    for (selector, offload), mine in points[points["selector"] != "dense"].groupby(["selector", "offload"]):
        rows.append([str(selector), str(offload), "", *(cell(mine[mine["top_k"] == k]) for k in ks)])
    headers = [("selector", ""), ("offload", ""), ("all", ""), *((f"k={k:,}", "") for k in ks)]
    return Table(headers, rows, left=2)
