"""Share of a selection that is not in the device cache, as a function of B, context and policy, from replay.

`miss_rates.csv` beside this module has what replay of a calibrated selection stream gave, with its provenance on top;
`replay_misses` makes it.
Lengths there are in multiples of k, so that models with other k read it too. Between its points the rate is
interpolated bilinearly over log(B/k) and log(context/k); beyond its largest context or B it stays as it was, which a
planner should say (`covers`).
"""

from __future__ import annotations

import csv
import functools
from importlib import resources

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RATES_FILE = "miss_rates.csv"


class MissTable:
    """Rates of one policy on the grid of its file."""

    def __init__(self, rates: dict[tuple[float, float], float]):
        """rates: (B/k, context/k) -> misses over selected records. A point without a rate has B >= context: none."""
        self._slots = np.array(sorted({slots for slots, _ in rates}))
        self._contexts = np.array(sorted({context for _, context in rates}))
        self._log_contexts = np.log(self._contexts)
        self._cached: dict[float, Floats] = {}
        self._rates = np.array([[rates.get((s, c), 0.0) for c in self._contexts] for s in self._slots])

    def covers(self, top_k: int, slots: int, context: float) -> bool:
        """Whether the table was replayed up to such a B and context."""
        return slots / top_k <= self._slots[-1] and context / top_k <= self._contexts[-1]

    def rate(self, top_k: int, slots: int, contexts: Floats) -> Floats:
        """float64 like `contexts` (records, prompt and output so far): 0 wherever all records have a slot."""
        rates = np.interp(
            np.log(np.maximum(contexts, 1.0) / top_k), self._log_contexts, self._over_contexts(slots / top_k)
        )
        return np.where(contexts <= slots, 0.0, rates)

    def _over_contexts(self, ratio: float) -> Floats:
        """Rates at the contexts of the grid, for one B/k."""
        if ratio not in self._cached:
            log_slots = np.log(self._slots)
            self._cached[ratio] = np.array([np.interp(np.log(ratio), log_slots, column) for column in self._rates.T])
        return self._cached[ratio]


@functools.cache
def miss_table(policy: str = "lru") -> MissTable:
    """The table of one replacement policy; the engine's is `lru`. Raises ValueError for one that was not replayed."""
    text = resources.files("harness.simulation").joinpath(RATES_FILE).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    rates = {
        (float(row["slots"]), float(row["context"])): float(row["miss_rate"]) for row in rows if row["policy"] == policy
    }
    if len({slots for slots, _ in rates}) < 2:
        known = sorted({row["policy"] for row in rows})
        raise ValueError(f"policy={policy} has no rates over B in {RATES_FILE}; it has {', '.join(known)}")
    return MissTable(rates)


def provenance() -> str:
    """The head of the file: what was replayed, how, and how near it comes to published rates."""
    text = resources.files("harness.simulation").joinpath(RATES_FILE).read_text(encoding="utf-8")
    return "\n".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
