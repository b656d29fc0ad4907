"""The figures of replayed selections."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis import published
from analysis.canvas import NUMBERS, STYLE
from analysis.studies.base import Plot
from analysis.studies.replay_caches import Cache

_SMOOTH = 20  # steps of the running mean
_DASHES = ("-", "--", ":", "-.")
_PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}%")
_STAR = {
    **{"marker": "*", "color": "black", "markerfacecolor": "none", "markersize": 9},  # hollow: ours stays visible
    **{"linestyle": "", "markeredgewidth": 0.8},
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A rate that a paper published and the same one measured here, shares of 1."""

    words: str
    ours: float
    published: float
    colour: str


def per_step(caches: list[Cache], stem: str, name: str) -> Plot:
    """Figure 6: the miss rate of each step, smoothed; means in the legend, published ones at the right edge."""
    dashes = {slots: _DASHES[i % len(_DASHES)] for i, slots in enumerate(_by_use(caches))}
    with mpl.rc_context(STYLE):
        figure, axes = _figure(5.6, 4.2)
        handles = []
        last = max(len(cache.per_step) for cache in caches)
        for cache in sorted(caches, key=lambda c: -c.miss_rate):
            look = {"color": cache.colour, "linestyle": dashes[cache.slots]}
            axes.plot(np.arange(1, len(cache.per_step) + 1), _smoothed(cache.per_step), gid=cache.words, **look)
            value = _paper(cache)
            said = f"{cache.words}: {100 * cache.miss_rate:.1f}%"
            if value is not None:
                star = _STAR | {"color": cache.colour, "markersize": 7}
                axes.plot(last * 1.02, value, clip_on=False, zorder=6, **star)
                said += f" (paper {100 * value:.1f}%)"
            handles.append(Line2D([], [], label=said, **look))
        if any(_paper(cache) is not None for cache in caches):
            handles.append(Line2D([], [], label="the paper's mean", **_STAR))
        axes.set_xlim(0, last)
        highest = max(_smoothed(cache.per_step)[_SMOOTH:].max(initial=cache.miss_rate) for cache in caches)
        axes.set_ylim(0, 1.15 * highest)
        axes.set_xlabel("Decode step")
        axes.set_ylabel(f"Miss rate (running mean of {min(_SMOOTH, last)} steps)")
        axes.xaxis.set_major_formatter(NUMBERS)
        axes.yaxis.set_major_formatter(_PERCENT)
        sns.despine(ax=axes)
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    alt = "; ".join(f"{cache.words}: mean {100 * cache.miss_rate:.1f}%" for cache in caches)
    caption = f"{name}: miss rate per step, averaged over layers and requests. The first steps, which fill the "
    caption += "caches, may lie above the frame." + " Stars: the paper's means." * any(map(_paper, caches))
    return Plot(stem, figure, caption, alt)


def hit_rate_by_slots(caches: list[Cache], stem: str, name: str) -> Plot:
    """Hit rate against B, a line per policy; published rates as stars."""
    curves: dict[tuple[object, ...], list[Cache]] = {}
    for cache in caches:
        curves.setdefault(cache.curve, []).append(cache)
    with mpl.rc_context(STYLE):
        figure, axes = _figure(5.6, 4.4)
        handles, ticks = [], sorted({cache.slots for cache in caches if cache.policy != "staging"})
        for curve in curves.values():
            best = curve[0]
            if best.policy == "staging":  # which has no B: a line across
                axes.axhline(1 - best.miss_rate, color=best.colour, linestyle=":", gid=best.name)
                handles.append(Line2D([], [], color=best.colour, linestyle=":", label=f"{best.name} (B = k)"))
                continue
            look = {"color": best.colour, "marker": best.marker, "markeredgecolor": "white", "markeredgewidth": 0.5}
            curve.sort(key=lambda cache: cache.slots)
            axes.plot([c.slots for c in curve], [1 - c.miss_rate for c in curve], gid=best.name, **look)
            handles.append(Line2D([], [], label=best.name, **look))
        marked = [(cache.slots, 1 - value) for cache in caches if (value := _paper(cache)) is not None]
        for slots, rate in marked:
            axes.plot(max(slots, ticks[0]), rate, zorder=6, **_STAR)
        if marked:
            handles.append(Line2D([], [], label="published", **_STAR))
        _slots_axis(axes, ticks)
        axes.set_ylabel("Hit rate")
        axes.yaxis.set_major_formatter(_PERCENT)
        sns.despine(ax=axes)
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    alt = "; ".join(f"{c.words}: {100 * (1 - c.miss_rate):.1f}%" for c in caches)
    return Plot(stem, figure, f"{name}: hit rate of every policy against the slots of the cache.", alt)


def beside_published(comparisons: list[Comparison], stem: str, name: str) -> Plot:
    """Published rates and ours, a row each."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(5.6, 1.2 + 0.32 * len(comparisons))
        for row, c in enumerate(reversed(comparisons)):
            axes.plot([c.published, c.ours], [row, row], color=c.colour, linewidth=1, zorder=2)
            axes.plot(c.published, row, zorder=4, **_STAR)
            axes.plot(c.ours, row, "o", color=c.colour, markeredgecolor="white", zorder=3, gid=c.words)
        axes.set_yticks(range(len(comparisons)), [c.words for c in reversed(comparisons)])
        axes.set_ylim(-0.6, len(comparisons) - 0.4)
        axes.set_xlabel("Rate")
        axes.xaxis.set_major_formatter(_PERCENT)
        sns.despine(ax=axes)
        handles = [
            Line2D([], [], label="published", **_STAR),
            Line2D([], [], marker="o", linestyle="", color="#4D4D4D", markeredgecolor="white", label="ours"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    alt = "; ".join(f"{c.words}: published {100 * c.published:.2f}%, ours {100 * c.ours:.2f}%" for c in comparisons)
    return Plot(stem, figure, f"{name}: what the paper published, and what this stream gives.", alt)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _slots_axis(axes: Axes, ticks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(NUMBERS)
    axes.set_xlabel("B, slots per request and layer")


def _smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of the last _SMOOTH steps up to each; of fewer where there are not so many yet."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - _SMOOTH)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _by_use(caches: list[Cache]) -> list[int]:
    """The Bs, the one that most caches have first."""
    counts = {cache.slots: sum(c.slots == cache.slots for c in caches) for cache in caches}
    return sorted(counts, key=lambda slots: (-counts[slots], slots))


def _paper(cache: Cache) -> float | None:
    """The miss rate that figure 6 gives for a cache of its workload."""
    if cache.workload != "glm51_longbench" or cache.tokens > 1 or not cache.as_long_as_published:
        return None
    table = published.rows("fig6")
    mine = table[table["system"] == f"{cache.policy}_B{cache.slots}"]
    return float(mine["value"].iloc[0]) / 100 if len(mine) else None
