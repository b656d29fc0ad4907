"""What a layer computes of one row has the same bits whatever other rows are beside it: batch invariance starts here.

torch promises nothing of the kind: its loops take numbers by the vector and what is left over one by one, with another
last bit, and its bfloat16 sums take another way where there are many rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engine_cells import cell_of
from torch import Tensor

from harness.engine.models.layers import INVARIANT_ROWS, Linear, Rotary, rms_norm
from harness.engine.models.mlp import Experts, FeedForward
from harness.schema import ModelConfig, RouterKind

ROWS = (2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 48)
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """As `engine.batch_invariant` asks for (harness.validate)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_rows_apart(compute: Callable[[Tensor], Tensor], width: tuple[int, ...], dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(len(width) + width[-1])
    for rows in ROWS:
        x = torch.randn(rows, *width, generator=made).to(dtype)
        together = compute(x)
        for row in range(rows):
            alone = compute(x[row : row + 1])[0]
            assert torch.equal(together[row], alone), f"row {row} of {rows}: {(together[row] != alone).sum()} values"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [(48,), (4, 16), (4, 64), (300,)])
def test_norms(width: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = torch.linspace(0.5, 1.5, width[-1]).to(dtype)
    assert_rows_apart(lambda x: rms_norm(x, weight, 1e-6), width, dtype)


@pytest.mark.parametrize("router", list(RouterKind))
@pytest.mark.parametrize("experts", [3, 6, 8, 64])
def test_routing(router: RouterKind, experts: int) -> None:
    config = ModelConfig(num_experts=experts, experts_per_token=2, router=router)
    forward = FeedForward(config, Linear(INVARIANT_ROWS))
    made = torch.Generator().manual_seed(experts)
    nothing = torch.empty(0)
    weights = Experts(torch.randn(experts, 48, generator=made), None, nothing, nothing, None)
    assert_rows_apart(lambda x: forward.route(x, weights)[1], (48,), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", ["shared_moe", "exact_gqa", "nsa"])
def test_experts(model: str, dtype: torch.dtype) -> None:
    config = cell_of(model, "hisparse_sync").model
    forward, made = FeedForward(config, Linear(INVARIANT_ROWS)), torch.Generator().manual_seed(1)

    def weight(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made).to(dtype)

    count, wide, inner = config.num_experts or 0, config.hidden_size, config.expert_intermediate_size or 0
    experts = Experts(
        weight(count, wide).float(), None, weight(count, 2 * inner, wide), weight(count, wide, inner), None
    )
    assert_rows_apart(lambda x: forward(x, experts), (wide,), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation(dtype: torch.dtype) -> None:
    rotary = Rotary(16, 64, 10_000.0, dtype)
    assert_rows_apart(lambda x: rotary.at(torch.full((len(x),), 37))(x), (4, 16), dtype)


def test_a_norm_in_bfloat16_is_rounded_once() -> None:
    """Against float64: half a unit in the last of 8 bits. Squares, mean and root in bfloat16 are off by several."""
    x = torch.randn(64, 576, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    error = ((rms_norm(x, torch.ones(576).bfloat16(), 1e-6).double() - exact) / exact).abs()
    assert float(error.max()) <= 2**-8 * 1.001
