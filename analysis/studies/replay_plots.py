"""The figures of replayed selections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from analysis.canvas import NUMBERS, STYLE
from analysis.studies.base import Plot
from analysis.studies.replay_caches import Cache
from analysis.studies.replay_published import Comparison, published_miss_rate

_AROUND = 10  # steps before and after, of the running mean
_DASHES = ("-", "--", ":", "-.")
_PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}%")
_STAR: dict[str, Any] = {
    **{"marker": "*", "color": "black", "markerfacecolor": "none", "markersize": 9},  # hollow: ours stays visible
    **{"linestyle": "", "markeredgewidth": 0.8},
}


def per_step(caches: list[Cache], stem: str, name: str) -> Plot:
    """Figure 6: the miss rate of each step, smoothed; means in the legend, published ones beside the right edge."""
    dashes = {slots: _DASHES[i % len(_DASHES)] for i, slots in enumerate(_by_use(caches))}
    caches = sorted(caches, key=lambda c: -c.miss_rate)
    papers = [(cache, value) for cache in caches if (value := published_miss_rate(cache)) is not None]
    with mpl.rc_context(STYLE):
        figure, axes = _figure(5.6, 4.2)
        handles = []
        last = max(len(cache.per_step) for cache in caches)
        highest = max(_smoothed(cache.per_step[1:]).max(initial=cache.miss_rate) for cache in caches)
        for cache in caches:
            look: dict[str, Any] = {"color": cache.colour, "linestyle": dashes[cache.slots]}
            axes.plot(np.arange(2, len(cache.per_step) + 1), _smoothed(cache.per_step[1:]), gid=cache.words, **look)
            paper = "".join(f" (paper {100 * value:.1f}%)" for known, value in papers if known is cache)
            handles.append(Line2D([], [], label=f"{cache.words}: {100 * cache.miss_rate:.1f}%{paper}", **look))
        columns = _columns([value for _, value in papers], 0.05 * highest)
        for (cache, value), column in zip(papers, columns, strict=True):
            axes.plot(last * (1.02 + 0.03 * column), value, clip_on=False, zorder=6, **_star(cache))
        if papers:
            handles.append(Line2D([], [], label="the paper's mean, by colour", **_STAR))
        axes.set_xlim(0, last)
        axes.set_ylim(0, 1.1 * highest)
        axes.set_xlabel("Decode step")
        axes.set_ylabel(f"Miss rate (running mean of {min(2 * _AROUND + 1, last)} steps)")
        axes.xaxis.set_major_formatter(NUMBERS)
        axes.yaxis.set_major_formatter(_PERCENT)
        sns.despine(ax=axes)
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    alt = "; ".join(f"{cache.words}: mean {100 * cache.miss_rate:.1f}%" for cache in caches)
    firsts = sorted(100 * cache.first_step_miss_rate for cache in caches)
    caption = f"{name}: miss rate per step, averaged over layers and requests, from the second step on; the first "
    caption += f"misses {firsts[0]:.0f}%" + f" to {firsts[-1]:.0f}%" * (firsts[-1] - firsts[0] >= 1)
    caption += ", which the means count." + " Stars: the paper's means, in the colour of their line." * bool(papers)
    return Plot(stem, figure, caption, alt)


def hit_rate_by_slots(caches: list[Cache], stem: str, name: str) -> Plot:
    """Hit rate against B, a line per policy; published rates as stars beside our points, in the line's colour."""
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
                handles.append(Line2D([], [], color=best.colour, linestyle=":", label=f"{best.name} (no B)"))
                continue
            look: dict[str, Any] = {
                "color": best.colour,
                "marker": best.marker,
                "markeredgecolor": "white",
                "markeredgewidth": 0.5,
            }
            curve.sort(key=lambda cache: cache.slots)
            axes.plot([c.slots for c in curve], [1 - c.miss_rate for c in curve], gid=best.name, **look)
            handles.append(Line2D([], [], label=best.name, **look))
        _slots_axis(axes, ticks)
        axes.margins(x=0.08)
        if _stars_beside(figure, axes, caches):
            handles.append(Line2D([], [], label="published, by colour", **_STAR))
        axes.set_ylabel("Hit rate")
        axes.yaxis.set_major_formatter(_PERCENT)
        sns.despine(ax=axes)
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    alt = "; ".join(f"{c.words}: {100 * (1 - c.miss_rate):.1f}%" for c in caches)
    caption = f"{name}: hit rate of every policy against the slots of the cache."
    return Plot(stem, figure, caption, alt)


def _stars_beside(figure: Figure, axes: Axes, caches: list[Cache]) -> bool:
    """A star per published rate, right of its B; staging's, which has no B, on the left edge. Whether there are any."""
    marked: dict[tuple[int | None, float], Cache] = {}
    for cache in caches:
        value = published_miss_rate(cache)
        if value is not None:  # of two policies that stand for the same published cache the last
            marked[None if cache.policy == "staging" else cache.slots, 1 - value] = cache
    low, high = axes.get_ylim()
    for slots in {slots for slots, _ in marked}:
        rates = sorted(rate for at, rate in marked if at == slots)
        for rate, column in zip(rates, _columns(rates, 0.045 * (high - low)), strict=True):
            star = _star(marked[slots, rate])
            base = axes.transData if slots is not None else axes.get_yaxis_transform()
            move = ScaledTranslation((9 + 10 * column) / 72, 0, figure.dpi_scale_trans)
            axes.plot([slots or 0], [rate], transform=base + move, clip_on=False, zorder=6, **star)
    return bool(marked)


def _star(cache: Cache) -> dict[str, Any]:
    return _STAR | {"color": cache.colour, "markersize": 7, "gid": f"_published {cache.words}"}


def _columns(values: Sequence[float], gap: float) -> list[int]:
    """For marks at these heights side by side: the first column in which nothing is nearer than `gap`."""
    columns: list[int] = []
    for i, value in enumerate(values):
        near = {columns[j] for j in range(i) if abs(values[j] - value) < gap}
        columns.append(next(c for c in range(i + 1) if c not in near))
    return columns


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
    """The mean of each step and of as many before as after it: _AROUND, fewer near the ends."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    at = np.arange(len(values))
    around = np.minimum(_AROUND, np.minimum(at, len(values) - 1 - at))
    return (sums[at + around + 1] - sums[at - around]) / (2 * around + 1)


def _by_use(caches: list[Cache]) -> list[int]:
    """The Bs, the one that most caches have first."""
    counts = {cache.slots: sum(c.slots == cache.slots for c in caches) for cache in caches}
    return sorted(counts, key=lambda slots: (-counts[slots], slots))
