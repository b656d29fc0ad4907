"""The panels of the paper's figures 1, 4 and 8, one line per offload system, as PDF and PNG.

(a) output throughput against concurrency, (b) mean TTFT and (c) mean TPOT against output throughput, and
(d) how many requests ran at once, which shows why a line of (a) is flat; where there is prefetch, (e) how long a token
waited for IO. Beside them, alone, the Pareto view: what each device gives against what one user gets. Figures are
built without pyplot:
no global state, no backend choice, no display.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from analysis import annotate, hidden_io, labels, legend, marks
from analysis.canvas import NUMBERS, STYLE
from analysis.frame import SIMULATED, Group

_DODGE = 0.8  # points sideways between lines of the running panel
_MOST_DODGE = 1.6  # points from the true place, a third of a marker


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes: its file name, its title, the measures a point must have, how it is drawn."""

    name: str
    title: str
    needs: tuple[str, ...]
    draw: Callable[[Axes, Group], None]
    labels_points: bool = False
    wanted: Callable[[Group], bool] = lambda group: True

    def has_data(self, group: Group) -> bool:
        return self.wanted(group) and not group.points.dropna(subset=list(self.needs)).empty


def draw_throughput(axes: Axes, group: Group) -> None:
    """Output throughput against concurrency; decode-only, hollow and lighter, where lines are few."""
    for i, series in enumerate(group.series):
        decode = group.line(i, legend.DECODE_ONLY)
        if len(decode) and legend.draws_decode_only(group):
            axes.plot(
                decode["concurrency"],
                decode[legend.DECODE_ONLY],
                color=labels.lighten(series.colour, 0.45),
                marker=series.marker,
                zorder=2.5,
                gid=f"{legend.DECODE_ONLY}:{series.words}",
                **legend.DECODE_LOOK,
            )
    for i in range(len(group.series)):
        _line(axes, group, i, "concurrency", "output_throughput")
    marks.over_concurrency(axes, group, "output_throughput")
    if legend.draws_decode_only(group):
        marks.over_concurrency(axes, group, legend.DECODE_ONLY)
    _concurrency_axis(axes, group)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("Output throughput (tokens/s)")
    axes.yaxis.set_major_formatter(NUMBERS)


def draw_ttft(axes: Axes, group: Group) -> None:
    """Mean time to first token against output throughput; logarithmic where it spans more than 30x."""
    low, high = _extent(group, "mean_ttft_ms")
    _draw_latency(axes, group, "mean_ttft_ms", "Mean TTFT", log=low > 0 and high > 30 * low)


def draw_tpot(axes: Axes, group: Group) -> None:
    """Mean time per output token against output throughput."""
    _draw_latency(axes, group, "mean_tpot_ms", "Mean TPOT")


def draw_running(axes: Axes, group: Group) -> None:
    """How many requests the server ran at once against how many the client kept open."""
    tested = group.concurrencies
    step = min(_DODGE, 2 * _MOST_DODGE / max(1, len(group.series) - 1))
    for i in range(len(group.series)):
        _line(axes, group, i, "concurrency", "peak_running", dodge=step * (i - (len(group.series) - 1) / 2))
    _concurrency_axis(axes, group)
    axes.set_yscale("log", base=2)
    low, high = _extent(group, "peak_running")
    if group.is_closed:
        low, high = min(low, tested[0]), max(high, tested[-1])
    axes.set_ylim(low / 1.35, high * 1.35)
    if len(tested) > 1 and group.is_closed:
        # to the edges and on top, so that lines on it do not hide it
        ends = [tested[0] / 1.25, tested[-1] * 1.25]
        axes.plot(ends, ends, zorder=5, gid=legend.IDEAL, **legend.IDEAL_LOOK)
    axes.yaxis.set_major_locator(FixedLocator(_running_ticks(group)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(NUMBERS)
    axes.set_ylabel("Requests running (peak)")


def draw_pareto(axes: Axes, group: Group) -> None:
    """Output tokens/s of one device against those one user sees (1 / mean TPOT): up and to the right is better."""
    for i in range(len(group.series)):
        _line(axes, group, i, "output_throughput_per_user", "output_throughput_per_device")
    axes.margins(0.1)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Speed for one user (tokens/s)")
    axes.set_ylabel("Throughput per device\n(tokens/s)")
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.yaxis.set_major_formatter(NUMBERS)


def _running_ticks(group: Group) -> list[float]:
    """Where the lines end, then the tested concurrencies that leave room between them."""
    ends = [line["peak_running"].max() for i in range(len(group.series)) if len(line := group.line(i, "peak_running"))]
    tested = reversed(group.concurrencies) if group.is_closed else ()
    wanted = [float(value) for value in (*sorted(set(ends), reverse=True), *tested)]
    gap = max(0.3, np.log2(max(wanted) / min(wanted)) / 14)
    kept: list[float] = []
    for value in wanted:
        if all(abs(np.log2(value / other)) >= gap for other in kept):
            kept.append(value)
    return sorted(kept)


def draw_io(axes: Axes, group: Group) -> None:
    """Time each token waited for records from the host pool, against concurrency."""
    for i in range(len(group.series)):
        _line(axes, group, i, "concurrency", "exposed_io_ms_per_token")
    marks.over_concurrency(axes, group, "exposed_io_ms_per_token")
    _concurrency_axis(axes, group)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("Exposed IO (ms/token)")
    axes.yaxis.set_major_formatter(NUMBERS)


PANELS = (
    Panel("throughput", "Output throughput", ("output_throughput",), draw_throughput),
    Panel("ttft", "Time to first token", ("output_throughput", "mean_ttft_ms"), draw_ttft, True),
    Panel("tpot", "Time per output token", ("output_throughput", "mean_tpot_ms"), draw_tpot, True),
    Panel("running", "Requests running at once", ("peak_running",), draw_running),
    Panel("io", "Exposed IO", ("exposed_io_ms_per_token",), draw_io, wanted=hidden_io.has_prefetch),
)
PARETO = Panel(  # beside the others, alone
    "pareto",
    "Speed for one user, throughput per device",
    ("output_throughput_per_user", "output_throughput_per_device"),
    draw_pareto,
    True,
)


def panels_with_data(group: Group) -> list[Panel]:
    """Those panels for which at least one ok point has the measures; none when no row is ok."""
    return [panel for panel in PANELS if panel.has_data(group)]


def build(group: Group, panels: Sequence[Panel]) -> Figure:
    """One figure: a single panel one column wide, or all of them two columns wide, legend below."""
    with mpl.rc_context(STYLE):
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        size = (3.6, 3.3) if len(panels) == 1 else (7.2, 2.75 * rows + 0.45)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05)  # inches
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for spare in grid[len(panels) :]:
            spare.set_axis_off()
        for i, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
            panel.draw(axes, group)
            sns.despine(ax=axes)
            if len(panels) > 1:
                axes.set_title(f"({'abcde'[i]}) {panel.title}", loc="left", fontsize="medium")
        if group.key["engine"] == SIMULATED:
            figure.suptitle(f"simulated: {group.key['model']} on {group.key['platform']}", fontsize="medium")
        legend.add(figure, grid[: len(panels)], columns, group)
        figure.draw_without_rendering()  # settles the layout, which label placement needs
        for axes, panel in zip(grid, panels, strict=False):
            if panel.labels_points:
                _label_points(axes, group, *panel.needs)
        figure.set_layout_engine("none")
    return figure


def _draw_latency(axes: Axes, group: Group, measure: str, words: str, log: bool = False) -> None:
    low, high = _extent(group, measure)
    unit, divisor = labels.time_unit(high)
    for i in range(len(group.series)):
        _line(axes, group, i, "output_throughput", measure)
    marks.over_throughput(axes, group, measure)
    axes.margins(0.1)
    axes.set_xlim(left=0)
    if log:
        axes.set_yscale("log")
        steps = (1.0, 2.0, 5.0) if high < 400 * low else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(subs=steps))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("Output throughput (tokens/s)")
    axes.set_ylabel(f"{words} ({unit})")
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / divisor:,g}"))


def _line(axes: Axes, group: Group, index: int, x: str, y: str, dodge: float = 0.0) -> None:
    """One series, y against x, with bars from the lowest to the highest repeat where there are several.

    `dodge` draws the points so many typographic points to the right, so that equal lines stay visible.
    """
    series = group.series[index]
    points = group.line(index, x, y)
    if points.empty:
        return
    look: dict[str, Any] = {"color": series.colour, "zorder": 4 if series.outputs_valid else 3}
    if dodge:  # only where the limits are set by hand: a moved line has no data limits of its own
        look["transform"] = axes.transData + ScaledTranslation(dodge / 72, 0, axes.figure.dpi_scale_trans)
    axes.plot(
        points[x],
        points[y],
        linestyle=series.style.linestyle,
        marker=series.marker,
        markeredgecolor="white",
        markeredgewidth=0.5,
        label=series.words,
        gid=f"{y}:{series.words}",
        **look,
    )
    several = points[points["repeats"] > 1]
    for measure, along in ((y, "yerr"), (x, "xerr")):
        if len(several) and measure != "concurrency":
            spread = [
                several[measure] - several[f"{measure}_min"],
                several[f"{measure}_max"] - several[measure],
            ]
            axes.errorbar(
                several[x],
                several[y],
                fmt="none",
                elinewidth=0.8,
                capsize=1.8,
                **{along: spread},
                **look,
            )


def _concurrency_axis(axes: Axes, group: Group) -> None:
    tested = group.concurrencies
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(tested) / 1.35, max(tested) * 1.35)
    axes.xaxis.set_major_locator(FixedLocator(_spread(tested)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.set_xlabel(group.axis.label)


def _spread(tested: list[float]) -> list[float]:
    """The tested concurrencies, less those too close to the next larger one to be written beside it."""
    gap = max(0.45, np.log2(max(tested) / min(tested)) / 11)
    kept: list[float] = []
    for value in reversed(tested):
        if not kept or np.log2(kept[-1] / value) >= gap:
            kept.append(value)
    return kept[::-1]


def _extent(group: Group, measure: str) -> tuple[float, float]:
    values = group.points[measure].dropna()
    return float(values.min()), float(values.max())


def _label_points(axes: Axes, group: Group, x: str, y: str) -> None:
    """Write the concurrency, or the pace, beside the points of a panel that has another axis."""
    wanted: list[tuple[int, annotate.PointLabel]] = []
    lines = []
    for i, series in enumerate(group.series):
        points = group.line(i, x, y)
        if points.empty:
            continue
        lines.append(points[[x, y]].to_numpy(dtype=float))
        for rank, at in enumerate(annotate.ends_first(len(points))):
            text = group.at(points["concurrency"][at])
            wanted.append((rank, annotate.PointLabel(*lines[-1][at], text, labels.readable(series.colour))))
    wanted.sort(key=lambda item: item[0])
    annotate.place(axes, [label for _, label in wanted], lines)
