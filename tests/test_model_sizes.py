"""Parameter counts against the totals that the models' authors publish, and expert coverage against a simulation."""

from __future__ import annotations

import random

import pytest

from harness.config import load_cells
from harness.model_sizes import device_weights, model_size
from harness.schema import Config


def _config(model: str, *more: str) -> Config:
    selector = "nsa" if "v4" in model else "dsa"
    return load_cells(["experiment=fig8", f"model={model}", f"selector={selector}", "offload=full_kv", *more])[0]


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [  # billions, as published (embeddings are counted in different ways among the active ones)
        ("deepseek_v32", 671.9, 38.4),
        ("glm51", 744, 40),
        ("glm52", 743.4, 41.2),
        ("deepseek_v4_flash", 284, 13),
    ],
)
def test_totals_are_the_published_ones(model: str, total: float, active: float) -> None:
    size = model_size(_config(model).model)
    assert size.total / 1e9 == pytest.approx(total, rel=0.003)
    assert size.active / 1e9 == pytest.approx(active, rel=0.035)


def test_coverage_is_what_random_routing_covers() -> None:
    size = model_size(_config("glm51").model)
    rng, seen, rounds = random.Random(0), 0, 200
    for _ in range(rounds):
        used: set[int] = set()
        for _ in range(24):
            used |= set(rng.sample(range(256), 8))
        seen += len(used)
    assert size.coverage(24) == pytest.approx(seen / rounds / 256, rel=0.02)
    assert size.coverage(1) == pytest.approx(8 / 256)


def test_fewer_ranks_share_the_attention() -> None:
    """Only the attention is repeated on every rank."""
    each = device_weights(_config("glm51"))
    shared = device_weights(_config("glm51", "engine.data_parallel=1"))
    size = model_size(_config("glm51").model)
    assert each - shared == pytest.approx((size.attention + 2 * size.absorbed) * 7 / 8)
