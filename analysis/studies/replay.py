"""Replayed selections: miss rate per step (figure 6), hit rate against B, and the published rates beside ours."""

from __future__ import annotations

import pandas as pd

from analysis import labels
from analysis.studies import replay_plots
from analysis.studies.base import Study
from analysis.studies.replay_caches import Cache, caches_of
from analysis.studies.replay_published import Comparison, comparisons
from analysis.tables import Table

_AT_ONCE = 10  # lines of the per-step figure; more would hide one another
_TERMS = [
    ("miss rate", "Share of a step's selected positions that are not in the cache, averaged over steps and layers."),
    ("B", "Slots of the cache of each request and layer; staging keeps the last selection only, B plays no part."),
    ("tokens", "Of one decode step, which share the cache: 1 + N with multi-token prediction (MTP-N)."),
    ("first step", "Miss rate of the first step alone, all its tokens together; the other rates count it too."),
    (
        "adjacent-step reuse",
        "Share of a step's selections that the step before had selected too, from the second step on (AVSG, section "
        "4.4), as staging keeps them; the newest position, which no step before could select, counts as kept.",
    ),
    ("cold-start reuse", "Share of the first step's selections that hit from an empty cache: its own tokens' only."),
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
        beside = [c for cache in caches for c in comparisons(cache)]
        if beside:
            plots.append(replay_plots.beside_published(beside, f"published{ending}", name))
            tables.append((f"{name}: published and ours", _published_table(beside)))
        tables.append((f"{name}: every cache", _table(caches)))
        notes += _notes(name, single, beside)
    return Study("Replacement policies on replayed selections", plots, tables, notes, _TERMS)


def _published_table(beside: list[Comparison]) -> Table:
    headers = [("rate", ""), ("published", "%"), ("ours", "%"), ("apart", "points"), ("of it", "%")]
    rows = [
        [
            c.words,
            f"{100 * c.published:.2f}",
            f"{100 * c.ours:.2f}",
            f"{100 * (c.ours - c.published):+.2f}",
            f"{100 * (c.ours / c.published - 1):+.1f}",
        ]
        for c in beside
    ]
    return Table(headers, rows)


def _table(caches: list[Cache]) -> Table:
    headers = [
        ("policy", ""),
        ("B", ""),
        ("tokens", ""),
        ("miss", ""),
        ("hits", ""),
        ("first step", "miss"),
        ("M", "sel/s"),
    ]
    rows = [
        [
            cache.name,
            "-" if cache.policy == "staging" else f"{cache.slots:,}",
            f"{cache.tokens}",
            labels.percent(cache.miss_rate),
            labels.percent(1 - cache.miss_rate),
            labels.percent(cache.first_step_miss_rate),
            labels.number(cache.selections_per_s / 1e6),
        ]
        for cache in caches
    ]
    return Table(headers, rows)


def _notes(name: str, caches: list[Cache], beside: list[Comparison]) -> list[str]:
    found = []
    for slots in sorted({cache.slots for cache in caches}):
        rates = {c.name: c.miss_rate for c in caches if c.slots == slots or c.policy == "staging"}
        if len(rates) > 2:
            order = sorted(rates, key=lambda policy: -rates[policy])
            said = " > ".join(f"{policy} {100 * rates[policy]:.2f}%" for policy in order)
            found.append(f"{name}, miss rates at B={slots:,}: {said}")
    if beside:
        worst = max(beside, key=lambda c: abs(c.ours / c.published - 1))
        by = f"{100 * (worst.ours / worst.published - 1):+.1f}%"
        found.append(f"{name}: furthest from its published value is the {worst.words}, by {by} of it")
    return found
