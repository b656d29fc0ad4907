"""Synthetic selections: two formulations that agree to the bit, and the statistics that the parameters promise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from harness.schema import LocalityConfig
from workloads.traces import synthetic
from workloads.traces.synthetic import SyntheticStream

LOCALITY = LocalityConfig(slow_weight=0.56, slow_rho=0.94, fast_weight=0.27, fast_rho=0.67, noise_weight=0.18)


def stream(locality: LocalityConfig = LOCALITY, **changes: int) -> SyntheticStream:
    return SyntheticStream(locality, **{"prompt_len": 2000, "steps": 90, "top_k": 100, **changes})


def selections(of: SyntheticStream) -> np.ndarray:
    return np.concatenate([block for block, _ in of])


def staging_misses(chosen: np.ndarray) -> float:
    return float(np.mean([1 - np.isin(now, before).mean() for before, now in itertools.pairwise(chosen)]))


@pytest.mark.parametrize(
    "changes", [{}, {"prompt_len": 1, "top_k": 40}, {"steps": 1}, {"prompt_len": 9000, "top_k": 2}]
)
def test_the_compiled_selection_is_the_numpy_one(monkeypatch: pytest.MonkeyPatch, changes: dict[str, int]) -> None:
    if synthetic._native() is None:
        pytest.skip("nothing compiles here")
    compiled = selections(stream(**changes))
    monkeypatch.setattr(synthetic, "_native", lambda: None)
    assert (selections(stream(**changes)) == compiled).all()


def test_a_stream_is_its_seed_request_and_layer() -> None:
    first = selections(stream())
    assert (selections(stream()) == first).all()
    for change in ({"seed": 1}, {"request": 1}, {"layer": 1}):
        other = selections(stream(**change))
        assert 0.8 < np.mean([1 - np.isin(a, b).mean() for a, b in zip(first, other, strict=True)]) < 0.99


def test_selections_are_top_k_of_a_growing_context() -> None:
    context_lens = np.concatenate([lengths for _, lengths in stream(prompt_len=50, steps=130)])
    assert context_lens.tolist() == list(range(51, 181))
    for row, context in zip(selections(stream(prompt_len=50, steps=130)), context_lens, strict=True):
        taken = row[row >= 0]
        assert len(taken) == min(100, context) == len(set(taken.tolist()))
        assert (np.diff(taken) > 0).all() and taken[-1] < context
        assert (row[len(taken) :] == -1).all()


def test_scores_have_the_variance_and_the_memory_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything selected but the parts taken one by one, from the numpy formulation's state."""
    n, steps = 4000, 60
    for locality, lag_1 in (
        (LocalityConfig(static_weight=0, slow_weight=2, slow_rho=0.9, fast_weight=0, noise_weight=0), 0.9),
        (LocalityConfig(static_weight=0, slow_weight=0, fast_weight=2, fast_rho=0.3, noise_weight=0), 0.3),
    ):
        fixed, slow, fast, random = SyntheticStream(locality, prompt_len=n, steps=steps, top_k=1)._initial()
        assert not fixed.any()
        path = []
        for step in range(steps):
            synthetic._select(
                fixed, slow, fast, random, n + 1 + step, *synthetic._motion(locality), np.empty((1, 1), np.int32)
            )
            path.append((slow + fast)[:n].copy())
        before, after = np.concatenate(path[:-1]), np.concatenate(path[1:])
        assert np.var(after) == pytest.approx(4, rel=0.03)
        assert np.corrcoef(before, after)[0, 1] == pytest.approx(lag_1, abs=0.01)


def test_static_scores_never_change_and_noise_forgets_at_once() -> None:
    still = LocalityConfig(static_weight=1, slow_weight=0, fast_weight=0, noise_weight=0)
    chosen = selections(stream(still))
    new = np.setdiff1d(np.unique(chosen), chosen[0])
    assert (new >= 2001).all()  # only positions that did not exist before
    noise = LocalityConfig(static_weight=0, slow_weight=0, fast_weight=0, noise_weight=1)
    assert staging_misses(selections(stream(noise))) == pytest.approx(1 - 100 / 2045, abs=0.01)


def test_more_memory_means_fewer_changes() -> None:
    def misses(rho: float) -> float:
        return staging_misses(selections(stream(LocalityConfig(slow_rho=rho, slow_weight=1))))

    assert misses(0.99) < misses(0.9) < misses(0.5)
