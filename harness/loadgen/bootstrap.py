"""95% confidence intervals by the percentile bootstrap (Efron 1979). The same sample gives the same interval."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

RESAMPLES = 1000
CONFIDENCE = 0.95
LEAST_FOR_A_MEAN = 10  # observations; below, the bootstrap of a mean is far too narrow
LEAST_REPEATS = 5  # of a point, each a mean itself, so that they scatter symmetrically; still somewhat narrow
_AT_ONCE = 1 << 22  # values of a batch of resamples

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
    means, quantiles = [], []
    for drawn in _resamples(ordered.size):
        sample = ordered[drawn]
        means.append(sample.mean(axis=1))
        if wanted:
            quantiles.append(np.quantile(sample, wanted, axis=1))
    mean = _middle(np.concatenate(means)) if values.size >= LEAST_FOR_A_MEAN else None
    bounds = dict(zip(wanted, np.concatenate(quantiles, axis=1), strict=True)) if wanted else {}
    return mean, [_middle(bounds[share]) if share in bounds else None for share in shares]


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
    rng = np.random.default_rng(0)
    step = max(1, min(RESAMPLES, _AT_ONCE // size))
    for start in range(0, RESAMPLES, step):
        yield rng.integers(size, size=(min(step, RESAMPLES - start), size))


def _middle(values: np.ndarray) -> tuple[float, float]:
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (outside, 1 - outside))
    return float(low), float(high)
