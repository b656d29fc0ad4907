"""What fits on a simulated platform: published bytes, SGLang's pools counted by hand, and brute-force admission."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import load_cells
from harness.engine.footprint import Footprint
from harness.schema import Config, Staging
from harness.simulation.pools import Pools, capacity, make_pools, pool_tokens, record_bytes_per_token
from harness.simulation.pools import state_bytes_per_token as state_bytes


def _fig(name: str, *more: str) -> Config:
    return load_cells([f"experiment={name}", *more])[0]


GLM51 = _fig("fig1", "offload=hisparse_sync")
GLM52 = _fig("fig8", "offload=hisparse_sync")


def test_bytes_of_a_token_are_the_published_ones() -> None:
    """13.09 GB at 128K: 1280 bytes per token and layer, index keys included (HiSparse, section 1)."""
    per_token = record_bytes_per_token(GLM51) + state_bytes(GLM51)
    assert per_token * 131072 / 1e9 == pytest.approx(13.09, rel=0.001)
    assert Footprint(GLM51).request(131072).records / 1e9 == pytest.approx(0.37, rel=0.01)  # section 3.3: about 0.4


def test_full_kv_holds_three_requests_a_rank() -> None:
    """Three of 40K tokens per H200 explain the TTFT of figure 8's baseline (shared/reference/upstream_hisparse.md)."""
    assert capacity(_fig("fig8", "offload=full_kv"), 32768, 8192) == 3 * 8


def test_cut_pools_by_hand() -> None:
    budget, ratio = int(GLM52.engine.device_kv_budget), 8
    device, host = pool_tokens(GLM52)
    index_keys = 21 * 128
    assert device == int(budget / (78 * 1152 + ratio * index_keys))
    assert host == ratio * device
    # a request beyond the first ones needs its prompt's pages free while it prefills, then B + 1 slots
    assert capacity(GLM52, 32768, 8192) == 8 * (1 + (device - 32768) // 4097)


def test_streamed_staging_is_bound_by_slots_or_by_the_host() -> None:
    config = copy.deepcopy(GLM52)
    config.engine.staging = Staging.streamed
    device, host = pool_tokens(config)
    assert capacity(config, 32768, 8192) == 8 * min(device // 4097, host // 40960)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40000), st.integers(1, 8000)), min_size=1, max_size=30),
    leaves=st.lists(st.integers(0, 29), max_size=30),
)
@settings(max_examples=35)
def test_admission_equals_counting_from_scratch(lengths: list[tuple[int, int]], leaves: list[int]) -> None:
    """After any admissions, first decode steps and ends, a request enters if and only if recounted bytes allow it."""
    rule = make_pools(GLM52)
    assert isinstance(rule, Pools)
    device, host = pool_tokens(GLM52)
    token = record_bytes_per_token(GLM52)
    held: dict[int, tuple[int, int, bool]] = {}  # prompt, output, whether it decodes

    def pages(tokens: int) -> int:
        return -(-tokens // 64) * 64

    def need(prompt: int, output: int, decodes: bool) -> tuple[float, float]:
        slots = 4097 if decodes else max(4097, pages(prompt))
        return slots * token, pages(prompt + output) * token

    for number, (prompt, output) in enumerate(lengths):
        now = [need(*h) for h in held.values()] + [need(prompt, output, False)]
        fits = sum(d for d, _ in now) <= int(device * token) and sum(h for _, h in now) <= int(host * token)
        assert rule.reserve(number, prompt, output) == fits
        if fits:
            held[number] = (prompt, output, False)
        for other in {n for n in leaves if n in held and n % 3 == number % 3}:
            if held[other][2]:
                rule.release(other)
                del held[other]
            else:
                assert rule.grow(other, held[other][0] + 1)
                held[other] = (held[other][0], held[other][1], True)
    for number in list(held):
        rule.release(number)
    assert rule.device_bytes == rule.host_bytes == 0


def test_what_never_fits_is_refused_in_one_line() -> None:
    long = make_pools(GLM51).refusal(163840, 8192)
    assert long and "\n" not in long and "pools" in long
    assert make_pools(GLM51).refusal(32768, 8192) is None
