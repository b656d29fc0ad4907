"""The least squares of calibration against sums whose terms are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibration.terms import fit

TERM = st.one_of(st.just(0.0), st.floats(1e-6, 1e-2))


@given(st.tuples(TERM, TERM, TERM).filter(any))
def test_exact_timings_give_their_terms_back(terms: tuple[float, float, float]) -> None:
    rows = [(1.0, float(n), n * context / 100) for n in (1, 2, 4, 8) for context in (100.0, 900.0)]
    seconds = [sum(unit * term for unit, term in zip(row, terms, strict=True)) for row in rows]
    if min(seconds) <= 0:
        return
    found = fit(rows, seconds)
    assert found.values == pytest.approx(terms, rel=1e-4, abs=1e-9)
    assert found.residual < 1e-6


def test_noise_moves_a_term_little_and_is_said() -> None:
    rng = np.random.default_rng(0)
    rows = [(1.0, float(n)) for n in range(1, 17)] * 10
    seconds = [(5e-3 + 5e-4 * n) * rng.uniform(0.9, 1.1) for _, n in rows]
    found = fit(rows, seconds)
    assert found.values == pytest.approx((5e-3, 5e-4), rel=0.05)
    assert 0.03 < found.residual < 0.07


def test_no_term_is_negative_and_the_rest_make_up_for_it() -> None:
    """Timings that fall with n: the best without a negative term is a constant."""
    found = fit([(1.0, float(n)) for n in range(1, 5)], [4.0, 3.9, 3.8, 3.7])
    assert found.values[1] == 0.0
    assert found.values[0] == pytest.approx(3.85, rel=0.01)


def test_nothing_timed_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was timed"):
        fit([], [])
