"""Peak throughput against context length, as in the paper's figure 5: what bounded residency gains as contexts grow.

Groups of one experiment that differ only in their prompts' length are a family: one panel, one line per system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from analysis import annotate, labels, legend, marks
from analysis.canvas import NUMBERS, STYLE
from analysis.frame import SIMULATED, Group, Series
from analysis.table import Table


@dataclass(frozen=True, slots=True)
class Peak:
    """A series' best point at one context length."""

    context: int  # tokens, prompt and output
    series: Series
    throughput: float  # output tokens/s
    low: float  # over the repeats
    high: float
    concurrency: int
    gain: float | None  # over full KV's best at this length
    published: float | None  # what a paper gives for it


@dataclass(frozen=True, slots=True)
class Family:
    """Groups that differ in `input_len` alone, by rising length."""

    groups: list[Group]

    @property
    def title(self) -> str:
        key = self.groups[0].key
        return f"{key['model']}, {key['selector']}" + ("" if key["top_k"] is None else f" (k={key['top_k']})")

    @property
    def peaks(self) -> list[Peak]:
        return [peak for group in self.groups for peak in _peaks(group)]


def families(groups: Sequence[Group]) -> list[Family]:
    """Those of at least two lengths with an ok point each."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        if not group.points.empty:
            key = tuple(value for name, value in group.key.items() if name != "input_len")
            found.setdefault(key, []).append(group)
    alike = [sorted(members, key=lambda group: int(group.key["input_len"])) for members in found.values()]
    return [Family(members) for members in alike if len(members) > 1]


def table(family: Family) -> Table:
    """One line per system and context length."""
    order = {
        peak.series.short: None for peak in sorted(family.peaks, key=lambda p: labels.system_order(p.series.system))
    }
    rows = []
    for name in order:
        for peak in family.peaks:
            if peak.series.short == name:
                gain = labels.MISSING if peak.gain is None else f"{peak.gain:.2f}"
                at = f"{peak.concurrency:,}"
                rows.append([name, f"{peak.context:,}", labels.number(peak.throughput), at, gain])
    headers = [(f"peak by context: {family.title}", ""), ("context", "tokens"), ("output", "tok/s"), ("at", "C")]
    return Table([*headers, ("times", "full KV")], rows)


def build(found: Sequence[Family]) -> Figure:
    """One panel per family, side by side, two a row; the gain over full KV is written at each point."""
    with mpl.rc_context(STYLE):
        columns = min(2, len(found))
        rows = -(-len(found) // columns)
        figure = Figure(figsize=(3.6 * columns, 2.6 * rows + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for spare in grid[len(found) :]:
            spare.set_axis_off()
        entries = {}
        for axes, family in zip(grid, found, strict=False):
            _draw(axes, family)
            sns.despine(ax=axes)
            axes.set_title(family.title, loc="left", fontsize="medium")
            entries |= {words: line for line, words in zip(*axes.get_legend_handles_labels(), strict=True)}
        if any(peak.published is not None for family in found for peak in family.peaks):
            entries["star: published"] = Line2D([], [], color="#777777", **legend.PUBLISHED_LOOK)
        if all(family.groups[0].key["engine"] == SIMULATED for family in found):
            figure.suptitle("simulated", fontsize="medium")
        link = next((family.groups[0].link for family in found if family.groups[0].link), None)
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=3,
            frameon=False,
            fontsize="small",
            title=link,
            title_fontsize="small",
        )
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes, family in zip(grid, found, strict=False):
            _write_gains(axes, family)
    return figure


def _draw(axes: Axes, family: Family) -> None:
    lines: dict[str, list[Peak]] = {}
    top = max(max(peak.high, peak.published or 0.0) for peak in family.peaks)
    for peak in sorted(family.peaks, key=lambda p: labels.system_order(p.series.system)):
        lines.setdefault(peak.series.words, []).append(peak)
    for words, peaks in lines.items():
        series = peaks[0].series
        axes.errorbar(
            [peak.context for peak in peaks],
            [peak.throughput for peak in peaks],
            yerr=[[p.throughput - p.low for p in peaks], [p.high - p.throughput for p in peaks]],
            color=series.colour,
            marker=series.marker,
            linestyle=series.style.linestyle,
            markeredgecolor="white",
            markeredgewidth=0.5,
            elinewidth=0.8,
            capsize=1.8,
            label=words,
        )
        for peak in peaks:
            if peak.published is not None:
                marks.star(axes, series.colour, peak.context, peak.published)
    contexts = sorted({peak.context for peak in family.peaks})
    axes.set_xscale("log", base=2)
    axes.set_xlim(contexts[0] / 1.3, contexts[-1] * 1.3)
    axes.xaxis.set_major_locator(FixedLocator(contexts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.yaxis.set_major_formatter(NUMBERS)
    axes.set_ylim(0, 1.18 * top)
    axes.set_xlabel("Context (tokens, prompt and output)")
    axes.set_ylabel("Peak output throughput\n(tokens/s)")


def _write_gains(axes: Axes, family: Family) -> None:
    """Each point's gain over full KV, where it hides no point, no star and as little of the lines as can be."""
    gains = [
        annotate.PointLabel(peak.context, peak.high, f"{peak.gain:.2f}x", labels.readable(peak.series.colour))
        for peak in family.peaks
        if peak.gain is not None
    ]
    lines = [np.column_stack(line.get_data()).astype(float) for line in axes.get_lines()]
    annotate.place(axes, gains, [line for line in lines if len(line)])


def _peaks(group: Group) -> list[Peak]:
    best = group.best_points()
    peaks = []
    for i, point in best.items():
        base = group.baseline_of(i)
        gain = point["output_throughput"] / best[base]["output_throughput"] if base in best and base != i else None
        peaks.append(
            Peak(
                context=int(group.key["input_len"]) + int(group.key["output_len"]),
                series=group.series[i],
                throughput=float(point["output_throughput"]),
                low=float(point["output_throughput_min"]),
                high=float(point["output_throughput_max"]),
                concurrency=int(point["concurrency"]),
                gain=gain,
                published=marks.peak(group, i),
            )
        )
    return peaks
