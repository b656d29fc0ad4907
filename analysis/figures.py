"""The panels of the paper's figures 1, 4 and 8, one line per offload system, as PDF and PNG.

(a) output throughput against concurrency, (b) mean TTFT and (c) mean TPOT against output throughput, and
(d) how many requests ran at once, which shows why a line of (a) is flat. Figures are built without pyplot:
no global state, no backend choice, no display.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from analysis import annotate, labels
from analysis.frame import Group

_DECODE_ONLY = "decode_only_throughput"
_DASHES = (0, (4, 2))
_NUMBERS = FuncFormatter(lambda value, _: f"{value:,g}")
_STYLE = {
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper", font_scale=0.95),
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same figure everywhere
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "path",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes: its file name, its title, the measures a point must have, how it is drawn."""

    name: str
    title: str
    needs: tuple[str, ...]
    draw: Callable[[Axes, Group], None]
    labels_points: bool = False

    def has_data(self, group: Group) -> bool:
        return not group.points.dropna(subset=list(self.needs)).empty


def draw_throughput(axes: Axes, group: Group) -> None:
    """Output throughput (solid) and decode-only throughput (dashed, lighter) against concurrency."""
    for i, series in enumerate(group.series):
        decode = group.line(i, _DECODE_ONLY)
        if len(decode):
            axes.plot(
                decode["concurrency"],
                decode[_DECODE_ONLY],
                color=labels.lighten(series.colour, 0.45),
                linestyle=_DASHES,
                linewidth=1.1,
                marker=series.style.marker,
                markersize=3.2,
                markerfacecolor="white",
                zorder=2.5,
                gid=f"{_DECODE_ONLY}:{series.words}",
            )
    for i in range(len(group.series)):
        _line(axes, group, i, "concurrency", "output_throughput")
    _concurrency_axis(axes, group)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("Output throughput (tokens/s)")
    axes.yaxis.set_major_formatter(_NUMBERS)


def draw_ttft(axes: Axes, group: Group) -> None:
    """Mean time to first token against output throughput; logarithmic where it spans more than 30x."""
    low, high = _extent(group, "mean_ttft_ms")
    _draw_latency(axes, group, "mean_ttft_ms", "Mean TTFT", log=low > 0 and high > 30 * low)


def draw_tpot(axes: Axes, group: Group) -> None:
    """Mean time per output token against output throughput."""
    _draw_latency(axes, group, "mean_tpot_ms", "Mean TPOT")


def draw_running(axes: Axes, group: Group) -> None:
    """How many requests the server ran at once against how many the client kept open."""
    ticks = _spread(group.concurrencies)
    ends = [min(group.concurrencies), max(group.concurrencies)]
    if len(ticks) > 1:
        axes.plot(ends, ends, color="#BBBBBB", linewidth=0.9, zorder=1.5, gid="ideal")
    for i in range(len(group.series)):
        _line(axes, group, i, "concurrency", "peak_running", dodge=i - (len(group.series) - 1) / 2)
    _concurrency_axis(axes, group)
    axes.set_yscale("log", base=2)
    low, high = _extent(group, "peak_running")
    axes.set_ylim(min(low, ends[0]) / 1.35, max(high, ends[1]) * 1.35)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(_NUMBERS)
    axes.set_ylabel("Requests running (peak)")


PANELS = (
    Panel("throughput", "Output throughput", ("output_throughput",), draw_throughput),
    Panel("ttft", "Time to first token", ("output_throughput", "mean_ttft_ms"), draw_ttft, True),
    Panel("tpot", "Time per output token", ("output_throughput", "mean_tpot_ms"), draw_tpot, True),
    Panel("running", "Requests running at once", ("peak_running",), draw_running),
)


def panels_with_data(group: Group) -> list[Panel]:
    """Those panels for which at least one ok point has the measures; none when no row is ok."""
    return [panel for panel in PANELS if panel.has_data(group)]


def build(group: Group, panels: Sequence[Panel]) -> Figure:
    """One figure: a single panel one column wide, or all of them two columns wide, legend below."""
    with mpl.rc_context(_STYLE):
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
                axes.set_title(f"({'abcd'[i]}) {panel.title}", loc="left", fontsize="medium")
        _legend(figure, grid[: len(panels)], columns)
        figure.draw_without_rendering()  # settles the layout, which label placement needs
        for axes, panel in zip(grid, panels, strict=False):
            if panel.labels_points:
                _label_points(axes, group, panel.needs[1])
        figure.set_layout_engine("none")
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.pdf and `stem`.png (200 dpi); the same rows give the same bytes."""
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("pdf", "png")]
    with mpl.rc_context(_STYLE):
        figure.savefig(paths[0], metadata={"CreationDate": None})
        figure.savefig(paths[1], dpi=200)
    return paths


def svg(figure: Figure) -> bytes:
    """The figure as a self-contained SVG document; the same rows give the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE | {"svg.hashsalt": "analysis"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _draw_latency(axes: Axes, group: Group, measure: str, words: str, log: bool = False) -> None:
    low, high = _extent(group, measure)
    unit, divisor = labels.time_unit(high)
    for i in range(len(group.series)):
        _line(axes, group, i, "output_throughput", measure)
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
    axes.xaxis.set_major_formatter(_NUMBERS)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / divisor:,g}"))


def _line(axes: Axes, group: Group, index: int, x: str, y: str, dodge: float = 0.0) -> None:
    """One series, y against x, with bars from the lowest to the highest repeat where there are several.

    `dodge` moves the points sideways (by 2^(0.05 dodge)) so that equal lines stay visible.
    """
    series = group.series[index]
    points = group.line(index, x, y)
    if points.empty:
        return
    shift = 2.0 ** (0.05 * dodge)
    look = {"color": series.colour, "zorder": 4 if series.outputs_valid else 3}
    axes.plot(
        points[x] * shift,
        points[y],
        linestyle=series.style.linestyle,
        marker=series.style.marker,
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
                several[x] * shift,
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
    axes.xaxis.set_major_formatter(_NUMBERS)
    axes.set_xlabel("Concurrency (requests in flight)")


def _spread(tested: list[int]) -> list[int]:
    """The tested concurrencies, less those too close to the next larger one to be written beside it."""
    gap = max(0.45, np.log2(max(tested) / min(tested)) / 11)
    kept: list[int] = []
    for value in reversed(tested):
        if not kept or np.log2(kept[-1] / value) >= gap:
            kept.append(value)
    return kept[::-1]


def _extent(group: Group, measure: str) -> tuple[float, float]:
    values = group.points[measure].dropna()
    return float(values.min()), float(values.max())


def _legend(figure: Figure, grid: Sequence[Axes], columns: int) -> None:
    """Every line's words once, below the axes; then what the line styles mean."""
    entries = {words: line for axes in grid for line, words in zip(*axes.get_legend_handles_labels(), strict=True)}
    gids = {str(line.get_gid()) for axes in grid for line in axes.get_lines()}
    if any(gid.startswith(_DECODE_ONLY) for gid in gids):
        grey = {"color": "#777777", "marker": "o"}
        entries["prefill + decode"] = Line2D([], [], markeredgecolor="white", markeredgewidth=0.5, **grey)
        entries["dashed: decode steps only"] = Line2D(
            [], [], linestyle=_DASHES, linewidth=1.1, markersize=3.2, markerfacecolor="white", **grey
        )
    if "ideal" in gids:
        entries["every request in flight runs"] = Line2D([], [], color="#BBBBBB", linewidth=0.9)
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


def _label_points(axes: Axes, group: Group, y: str) -> None:
    """Write the concurrency beside the points of a latency panel."""
    wanted: list[tuple[int, annotate.PointLabel]] = []
    lines = []
    for i, series in enumerate(group.series):
        points = group.line(i, "output_throughput", y)
        if points.empty:
            continue
        lines.append(points[["output_throughput", y]].to_numpy(dtype=float))
        for rank, at in enumerate(annotate.ends_first(len(points))):
            text = str(int(points["concurrency"][at]))
            wanted.append((rank, annotate.PointLabel(*lines[-1][at], text, series.colour)))
    wanted.sort(key=lambda item: item[0])
    annotate.place(axes, [label for _, label in wanted], lines)
