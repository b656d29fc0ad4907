"""Replayed selections: miss rate per step (figure 6), hit rate against B, and the published rates beside ours."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis import labels, published
from analysis.studies import replay_plots
from analysis.studies.base import Study
from analysis.studies.replay_caches import Cache, caches_of
from analysis.tables import Table

_AT_ONCE = 10  # lines of the per-step figure; more would hide one another
_TERMS = [
    ("miss rate", "Share of a step's selected positions that are not in the cache, averaged over steps and layers."),
    ("B", "Slots of the cache of each request and layer; staging keeps the last selection only, B plays no part."),
    ("tokens", "Of one decode step, which share the cache: 1 + N with multi-token prediction (MTP-N)."),
    ("first step", "Share of the first step's selections that hit; from an empty cache only its own tokens can."),
    ("adjacent-step reuse", "Share of a step's selections that the step before had selected too."),
    ("selections/s", "Positions looked up in a second of one core's time, without making or reading the stream."),
]


def study(rows: pd.DataFrame) -> Study:
    """Rows of engine=replay; means over repeats."""
    plots, tables, notes = [], [], []
    for (workload, model), mine in rows.groupby(["workload", "model"], sort=False):
        caches = caches_of(mine)
        name = f"{model}, {workload}"
        ending = f"-{workload}" if rows["workload"].nunique() > 1 else ""
        single = [cache for cache in caches if cache.tokens == 1]
        if 0 < len(single) <= _AT_ONCE:
            plots.append(replay_plots.per_step(single, f"miss_rate_per_step{ending}", name))
        if any(sum(c.curve == cache.curve for c in single) > 1 for cache in single):
            plots.append(replay_plots.hit_rate_by_slots(single, f"hit_rate_by_slots{ending}", name))
        comparisons = [c for cache in caches for c in _comparisons(cache)]
        if comparisons:
            plots.append(replay_plots.beside_published(comparisons, f"published{ending}", name))
            tables.append((f"{name}: published and ours", _published_table(comparisons)))
        tables.append((f"{name}: every cache", _table(caches)))
        notes += _notes(name, single, comparisons)
    return Study("Replacement policies on replayed selections", plots, tables, notes, _TERMS)


def _comparisons(cache: Cache) -> Iterator[replay_plots.Comparison]:
    """What the papers say of this cache on this workload."""
    if cache.workload == "glm51_longbench" and cache.tokens == 1 and cache.as_long_as_published:
        for value in _published("fig6", "hisparse", f"{cache.policy}_B{cache.slots}"):
            yield replay_plots.Comparison(f"miss rate, {cache.words}", cache.miss_rate, value, cache.colour)
    if cache.workload == "glm53_agent":
        named = {"staging": ("adjacent_step_reuse", "adjacent-step reuse")}
        system, words = named.get(cache.policy, (f"avsg_S{cache.slots}", f"hit rate, {cache.words}"))
        if cache.tokens > 1 and cache.empty:
            words = f"cold start, MTP-{cache.tokens - 1}"
            for value in _published("sec4.4", "avsg", f"mtp{cache.tokens - 1}_cold_start"):
                yield replay_plots.Comparison(words, 1 - cache.first_step_miss_rate, value, cache.colour)
        elif cache.tokens == 1 and cache.policy in ("staging", "lifetime", "avsg"):
            for value in _published("sec4.4", "avsg", system):
                yield replay_plots.Comparison(words, 1 - cache.miss_rate, value, cache.colour)


def _published(figure: str, paper: str, system: str) -> list[float]:
    table = published.rows(figure, paper=paper)
    return [float(value) / 100 for value in table[table["system"] == system]["value"]]


def _published_table(comparisons: list[replay_plots.Comparison]) -> Table:
    headers = [("rate", ""), ("published", "%"), ("ours", "%"), ("apart", "points"), ("of it", "%")]
    rows = [
        [
            c.words,
            f"{100 * c.published:.2f}",
            f"{100 * c.ours:.2f}",
            f"{100 * (c.ours - c.published):+.2f}",
            f"{100 * (c.ours / c.published - 1):+.1f}",
        ]
        for c in comparisons
    ]
    return Table(headers, rows)


def _table(caches: list[Cache]) -> Table:
    headers = [("policy", ""), ("B", ""), ("tokens", ""), ("miss", ""), ("hits", ""), ("first", "step"), ("M", "sel/s")]
    rows = [
        [
            cache.name,
            f"{cache.slots:,}",
            f"{cache.tokens}",
            labels.percent(cache.miss_rate),
            labels.percent(1 - cache.miss_rate),
            labels.percent(1 - cache.first_step_miss_rate),
            labels.number(cache.selections_per_s / 1e6),
        ]
        for cache in caches
    ]
    return Table(headers, rows)


def _notes(name: str, caches: list[Cache], comparisons: list[replay_plots.Comparison]) -> list[str]:
    found = []
    for slots in sorted({cache.slots for cache in caches}):
        rates = {c.name: c.miss_rate for c in caches if c.slots == slots or c.policy == "staging"}
        if len(rates) > 2:
            order = sorted(rates, key=lambda policy: -rates[policy])
            said = " > ".join(f"{policy} {100 * rates[policy]:.1f}%" for policy in order)
            found.append(f"{name}, miss rates at B={slots:,}: {said}")
    if comparisons:
        worst = max(comparisons, key=lambda c: abs(c.ours / c.published - 1))
        by = f"{100 * (worst.ours / worst.published - 1):+.1f}%"
        found.append(f"{name}: furthest from its published value is the {worst.words}, by {by} of it")
    return found
