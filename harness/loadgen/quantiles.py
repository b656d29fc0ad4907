"""Quantiles by numpy's linear rule, bit for bit, where a whole sample need not be laid out or sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Place(NamedTuple):
    """Where a quantile of n observations lies among them in order: between two, `part` of the way."""

    below: int
    above: int
    part: float


def place(size: int, share: float) -> Place:
    """Of the quantile `share` (0..1) of `size` observations, at least one."""
    index = (size - 1) * share
    below = int(np.floor(index))
    return Place(below, min(below + 1, size - 1), index - below)


def between(below: np.ndarray, above: np.ndarray, part: float) -> np.ndarray:
    """The value `part` of the way, reckoned from the nearer end as `np.quantile` does; float64 like both."""
    gap = above - below
    return above - gap * (1 - part) if part >= 0.5 else below + gap * part


def repeated(values: np.ndarray, counts: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """`np.quantile(np.repeat(values, counts), shares)` of values [n], each there `counts` times; float64 [shares]."""
    order = np.argsort(values)
    ends = np.cumsum(counts[order])  # of each value's run among all in order
    places = [place(int(ends[-1]), share) for share in shares]
    ranks = np.array([(p.below, p.above) for p in places])
    found = values[order][np.searchsorted(ends, ranks, side="right")]
    return np.array([between(below, above, p.part) for (below, above), p in zip(found, places, strict=True)])
