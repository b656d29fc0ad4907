"""What the papers say of a replayed cache: HiSparse's figure 6 and AVSG's section 4.4, as miss rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from analysis import published
from analysis.studies.replay_caches import Cache


@dataclass(frozen=True, slots=True)
class Comparison:
    """A rate that a paper published and the same one measured here, shares of 1."""

    words: str
    ours: float
    published: float
    colour: str


def published_miss_rate(cache: Cache) -> float | None:
    """The miss rate, over all steps, that a paper gives for this cache on its workload.

    AVSG gives hit rates of its own cache, which the policies `avsg` and `lifetime` both are, and its adjacent-step
    reuse, which is what `staging` keeps.
    """
    if cache.tokens > 1 or cache.empty or cache.parameters:
        return None
    if cache.workload == "glm51_longbench" and cache.as_long_as_published:
        return _value("fig6", "hisparse", f"{cache.policy}_B{cache.slots}")
    if cache.workload == "glm53_agent" and cache.policy in ("staging", "lifetime", "avsg"):
        system = "adjacent_step_reuse" if cache.policy == "staging" else f"avsg_S{cache.slots}"
        rate = _value("sec4.4", "avsg", system)
        return None if rate is None else 1 - rate
    return None


def comparisons(cache: Cache) -> Iterator[Comparison]:
    """The cache's rates beside the papers', in the papers' own terms."""
    rate = published_miss_rate(cache)
    if rate is not None and cache.workload == "glm51_longbench":
        yield Comparison(f"miss rate, {cache.words}", cache.miss_rate, rate, cache.colour)
    elif rate is not None and cache.policy == "staging":
        yield Comparison("adjacent-step reuse", cache.adjacent_step_reuse, 1 - rate, cache.colour)
    elif rate is not None:
        yield Comparison(f"hit rate, {cache.words}", 1 - cache.miss_rate, 1 - rate, cache.colour)
    if cache.workload == "glm53_agent" and cache.tokens > 1 and cache.empty:
        name = f"MTP-{cache.tokens - 1}"
        reuse = _value("sec4.4", "avsg", f"mtp{cache.tokens - 1}_cold_start")
        if reuse is not None:
            yield Comparison(f"cold-start reuse, {name}", 1 - cache.first_step_miss_rate, reuse, cache.colour)


def _value(figure: str, paper: str, system: str) -> float | None:
    table = published.rows(figure, paper=paper)
    mine = table[table["system"] == system]
    return float(mine["value"].iloc[0]) / 100 if len(mine) else None
