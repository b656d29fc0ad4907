"""Quantiles by counts and by ranks, against numpy's of the whole sample, to the bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.bootstrap import CONFIDENCE, RESAMPLES, intervals
from harness.loadgen.quantiles import between, place, repeated

SHARES = st.floats(0, 1)
VALUES = st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 60)), min_size=1, max_size=20)


@given(VALUES, st.lists(SHARES, min_size=1, max_size=5))
def test_counted_values_are_as_good_as_laid_out(counted: list[tuple[float, int]], shares: list[float]) -> None:
    values, counts = np.array([v for v, _ in counted]), np.array([n for _, n in counted])
    assert repeated(values, counts, shares).tolist() == np.quantile(np.repeat(values, counts), shares).tolist()


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40), SHARES)
def test_place_and_between_are_numpys_rule(values: list[float], share: float) -> None:
    ordered = np.sort(values)
    at = place(len(values), share)
    assert between(ordered[at.below], ordered[at.above], at.part) == np.quantile(ordered, share)


def test_a_resamples_quantile_is_found_by_rank() -> None:
    """The interval from ranks, against one from all resamples laid out and sorted; small and too large to be kept."""
    rng = np.random.default_rng(5)
    for size in (7, 400, 3000, 5000):
        values = rng.lognormal(size=size)
        drawn = np.random.default_rng(0)
        step = max(1, min(RESAMPLES, (1 << 22) // size))
        rows = np.concatenate(
            [drawn.integers(size, size=(min(step, RESAMPLES - at), size)) for at in range(0, RESAMPLES, step)]
        )
        medians = np.quantile(np.sort(values)[rows], 0.5, axis=1)
        (found,) = intervals(values, (0.5,))[1]
        outside = (1 - CONFIDENCE) / 2
        assert found == tuple(np.quantile(medians, (outside, 1 - outside)))
