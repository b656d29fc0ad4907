"""95% confidence intervals by the percentile bootstrap (Efron 1979). The same sample gives the same interval."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from harness.loadgen.quantiles import between, place

RESAMPLES = 1000
CONFIDENCE = 0.95
LEAST_FOR_A_MEAN = 10  # observations; below, the bootstrap of a mean is far too narrow
LEAST_REPEATS = 5  # of a point, each a mean itself, so that they scatter symmetrically; still somewhat narrow
_AT_ONCE = 1 << 22  # values of a batch of resamples
_SMALL = 1024  # observations; their resamples take 8 MB

Interval = tuple[float, float] | None


def least_for_a_quantile(share: float) -> int:
    """Observations below which no two of them enclose that quantile with 95% confidence: 6 for the median, 368 for p99.

    All of n observations lie below quantile q with probability q**n, and above it with (1 - q)**n; each must
    be at most 2.5%.
    """
    outside = (1 - CONFIDENCE) / 2
    return int(np.ceil(np.log(outside) / np.log(max(share, 1 - share))))


def intervals(values: np.ndarray, shares: tuple[float, ...]) -> tuple[Interval, list[Interval]]:
    """Of the mean, and of the quantiles `shares` (0..1), of independent observations [n]; None where n is too small."""
    wanted = [share for share in shares if values.size >= least_for_a_quantile(share)]
    if values.size < LEAST_FOR_A_MEAN and not wanted:
        return None, [None] * len(shares)
    ordered = np.sort(values)  # the order of requests plays no part
    mean = None
    if values.size >= LEAST_FOR_A_MEAN:
        mean = _middle(np.concatenate([ordered[drawn].mean(axis=1) for drawn in _resamples(ordered.size)]))
    return mean, [_quantile_interval(ordered, share) if share in wanted else None for share in shares]


def _quantile_interval(ordered: np.ndarray, share: float) -> Interval:
    below, above = _drawn_ranks(ordered.size, share)
    return _middle(between(ordered[below], ordered[above], place(ordered.size, share).part))


def repeats_interval(values: np.ndarray) -> Interval:
    """Of the mean over a point's repeats [n]; None below LEAST_REPEATS."""
    if values.size < LEAST_REPEATS:
        return None
    ordered = np.sort(values)
    return _middle(np.concatenate([ordered[drawn].mean(axis=1) for drawn in _resamples(ordered.size)]))


def ratio_interval(sums: np.ndarray, counts: np.ndarray) -> Interval:
    """Of sum(sums) / sum(counts) over requests [n], which are drawn whole; None where n is too small.

    For token-weighted means: the tokens of one request depend on each other.
    """
    if sums.size < LEAST_FOR_A_MEAN:
        return None
    order = np.lexsort((counts, sums))
    sums, counts = sums[order], counts[order]
    found = [sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1) for drawn in _resamples(sums.size)]
    return _middle(np.concatenate(found))


def _resamples(size: int) -> Iterator[np.ndarray]:
    """Index arrays [some, size], RESAMPLES rows in all."""
    return iter((_kept(size),)) if size <= _SMALL else _drawn(size)


@functools.lru_cache(maxsize=8)
def _kept(size: int) -> np.ndarray:
    """All rows of a small sample: a point's latencies are as many, and so are those of the sweep's other cells."""
    (rows,) = _drawn(size)
    return rows


def _drawn(size: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    step = max(1, min(RESAMPLES, _AT_ONCE // size))
    for start in range(0, RESAMPLES, step):
        yield rng.integers(size, size=(min(step, RESAMPLES - start), size))


@functools.lru_cache(maxsize=16)
def _drawn_ranks(size: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Of each resample, the ranks in the sample of the two observations between which its quantile lies [RESAMPLES]:
    they hang on what was drawn, not on the values."""
    at = place(size, share)
    ranks = [np.partition(rows, (at.below, at.above), axis=1)[:, (at.below, at.above)] for rows in _resamples(size)]
    below, above = np.concatenate(ranks).T
    return below, above


def _middle(values: np.ndarray) -> tuple[float, float]:
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (outside, 1 - outside))
    return float(low), float(high)
