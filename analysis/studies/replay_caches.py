"""The caches of a replay: rows of engine=replay grouped by policy, B and what else tells them apart."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness import store

_COLOURS = {  # the paper's policies from the Okabe-Ito set; the others stay apart from them and from one another
    "staging": "#8A8A8A",
    "fifo": "#D55E00",
    "random": "#CC79A7",
    "lru": "#0072B2",
    "belady": "#009E73",
    "lifetime": "#5D3A9B",
    "lru_plain": "#56B4E9",
    "bucketed_lru": "#3B4CC0",
    "clock": "#B07D00",
    "lfu": "#6B4226",
    "slru": "#A50026",
    "s3fifo": "#E69F00",
    "arc": "#1B7837",
    "avsg": "#E7298A",
}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d", "H")
_WORDS = {name: name.upper() for name in ("lru", "fifo", "lfu", "slru", "arc", "avsg")}
_WORDS |= {"s3fifo": "S3-FIFO", "belady": "Bélády", "lru_plain": "plain LRU", "bucketed_lru": "bucketed LRU"}


@dataclass(frozen=True, slots=True)
class Cache:
    """One policy at one B on one workload; rates are shares of 1, means over repeats."""

    workload: str
    policy: str
    slots: int
    tokens: int
    empty: bool
    parameters: tuple[str, ...]
    miss_rate: float
    first_step_miss_rate: float
    selections_per_s: float
    per_step: NDArray[np.float64]  # miss rate of each step

    @property
    def name(self) -> str:
        """The policy with what of it is not the default."""
        more = [*self.parameters] + ["from empty"] * self.empty
        words = _WORDS.get(self.policy, self.policy.replace("_", " "))
        return words + (f" ({', '.join(more)})" if more else "")

    @property
    def adjacent_step_reuse(self) -> float:
        """Of `staging`: the share of a step's positions that the step before had, from the second step on."""
        return 1 - float(self.per_step[1:].mean()) if len(self.per_step) > 1 else 0.0

    @property
    def words(self) -> str:
        return self.name if self.policy == "staging" else f"{self.name}, B={self.slots:,}"  # which has no B

    @property
    def as_long_as_published(self) -> bool:
        """Figure 6's means are over this many steps; over fewer, filling the cache weighs more."""
        return len(self.per_step) == 1000

    @property
    def curve(self) -> tuple[object, ...]:
        """Caches that differ in B only are points of one curve."""
        return (self.policy, self.tokens, self.empty, self.parameters)

    @property
    def colour(self) -> str:
        spare = ("#4D4D4D", "#7F3B08", "#2D004B")
        return _COLOURS.get(self.policy, spare[zlib.crc32(self.policy.encode()) % len(spare)])

    @property
    def marker(self) -> str:
        known = list(_COLOURS)
        return _MARKERS[known.index(self.policy) if self.policy in known else -1]


def caches_of(rows: pd.DataFrame) -> list[Cache]:
    """The caches of one workload's ok rows, by the order of _COLOURS, then by B."""
    found: list[Cache] = []
    for _, points in rows.groupby("cell_id", sort=False):
        first = points.iloc[0]
        replay = store.read_config(first["point_path"])["replay"]
        steps = [store.read_steps(path)["miss_rate"].to_numpy() for path in points["point_path"]]
        found.append(
            Cache(
                workload=first["workload"],
                policy=first["policy"],
                slots=int(first["cache_slots"]),
                tokens=int(first["tokens"]),
                empty=bool(replay["empty"]),
                parameters=tuple(sorted(replay["parameters"])),
                miss_rate=float(points["miss_rate"].mean()),
                first_step_miss_rate=float(points["first_step_miss_rate"].mean()),
                selections_per_s=float(points["selections_per_s"].mean()),
                per_step=np.mean(steps, axis=0),
            )
        )
    order = list(_COLOURS)
    return sorted(
        found,
        key=lambda c: (order.index(c.policy) if c.policy in order else len(order), c.policy, c.tokens, c.slots, c.name),
    )
