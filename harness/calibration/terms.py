"""Terms that explain timings: non-negative least squares on relative errors. Pure arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Fit:
    """values: seconds per unit of each term, none negative; residual: median share by which the timings miss it."""

    values: tuple[float, ...]
    residual: float


def fit(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> Fit:
    """The sum of terms nearest to the timings.

    rows: of each timing how much of every term it had; seconds: how long it took, above 0. Every subset of the terms
    is tried (there are at most six), the others being 0: that is exact where negative terms are not allowed.
    Raises ValueError for no timings.
    """
    if not rows:
        raise ValueError("nothing was timed")
    weights = 1.0 / np.asarray(seconds, dtype=np.float64)
    units = np.asarray(rows, dtype=np.float64) * weights[:, None]
    best, best_error = np.zeros(units.shape[1]), np.inf
    for size in range(1, units.shape[1] + 1):
        for chosen in itertools.combinations(range(units.shape[1]), size):
            values = np.zeros(units.shape[1])
            values[list(chosen)] = np.linalg.lstsq(units[:, chosen], np.ones(len(units)), rcond=None)[0]
            error = float(np.square(units @ values - 1.0).sum())
            if (values >= 0).all() and error < best_error * (1 - 1e-9):
                best, best_error = values, error
    return Fit(tuple(map(float, best)), float(np.median(np.abs(units @ best - 1.0))))
