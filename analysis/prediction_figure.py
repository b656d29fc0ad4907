"""Measured and simulated on one figure: the only one in which lines of both share axes, each labelled."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from analysis import labels
from analysis.canvas import NUMBERS, STYLE

_PANELS = (
    ("output_throughput", "Output throughput (tokens/s)", False),
    ("mean_ttft_ms", "Mean TTFT (s)", True),
    ("mean_tpot_ms", "Mean TPOT (ms)", False),
)
_SIMULATED = {"linestyle": (0, (3, 2)), "markerfacecolor": "white"}
_LOG_SPAN = 400.0  # above it, ticks at the decades alone


def build(points: pd.DataFrame, title: str) -> Figure:
    """Three panels over concurrency; `points`: a group of `analysis.prediction.Comparison`."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.3), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, (measure, words, log) in zip(figure.subplots(1, 3), _PANELS, strict=True):
            for (system, _), mine in points.groupby(["offload", "cache_slots"], dropna=False, sort=False):
                _draw(axes, str(system), mine.sort_values("concurrency"), measure)
            _finish(axes, points, measure, words, log)
        figure.suptitle(f"measured and simulated: {title}", fontsize="medium")
        figure.legend(handles=_handles(points), loc="outside lower center", ncols=3, frameon=False)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def _draw(axes: Axes, system: str, points: pd.DataFrame, measure: str) -> None:
    style = labels.style_of(system)
    look = {"color": style.colour, "marker": style.marker}
    below, above = points[measure] - points[f"{measure}_low"], points[f"{measure}_high"] - points[measure]
    axes.errorbar(
        points["concurrency"],
        points[measure],
        yerr=[below, above],
        elinewidth=0.8,
        capsize=1.8,
        markeredgecolor="white",
        markeredgewidth=0.5,
        label=f"measured: {style.words}",
        **look,
    )
    axes.plot(
        points["concurrency"],
        points[f"{measure}_simulated"],
        label=f"simulated: {style.words}",
        **look,
        **_SIMULATED,  # type: ignore[arg-type]
    )


def _finish(axes: Axes, points: pd.DataFrame, measure: str, words: str, log: bool) -> None:
    tested = sorted(set(points["concurrency"]))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(tested))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.set_xlabel("Concurrency")
    axes.set_ylabel(words)
    if log:
        low, high = points[measure].min(), points[measure].max()
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < _LOG_SPAN * low else (1.0,)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:,g}"))
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(NUMBERS)
    sns.despine(ax=axes)


def _handles(points: pd.DataFrame) -> list[Line2D]:
    systems = sorted(set(points["offload"]), key=labels.system_order)
    found = []
    for system in systems:
        style = labels.style_of(system)
        found.append(Line2D([], [], color=style.colour, marker=style.marker, label=style.words))
    several = points["repeats"].max() > 1
    measured = "measured (median, range of repeats)" if several else "measured (one run)"
    found.append(Line2D([], [], color="#444444", marker="o", label=measured))
    found.append(Line2D([], [], color="#444444", marker="o", label="simulated", **_SIMULATED))  # type: ignore[arg-type]
    return found
