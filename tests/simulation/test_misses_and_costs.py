"""The miss table against the published figure and its own file; the cost terms against sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness.config import load_cells
from harness.simulation.costs import RankBatch, RankChunks, StepCosts
from harness.simulation.misses import miss_table, provenance
from harness.validate import ConfigError

CELLS = {cell.offload.system.value: cell for cell in load_cells(["experiment=fig8"])}


def _rate(policy: str, slots: int, context: float) -> float:
    return float(miss_table(policy).rate(2048, slots, np.array([context]))[0])


@pytest.mark.parametrize(
    ("policy", "slots", "published"), [("lru", 4096, 0.134), ("lru", 8192, 0.067), ("fifo", 4096, 0.172)]
)
def test_figure_6(policy: str, slots: int, published: float) -> None:
    """The paper's means at 100,384 tokens; the stream was calibrated on them to within 6%."""
    assert _rate(policy, slots, 100384) == pytest.approx(published, rel=0.06)


def test_more_slots_miss_less_and_longer_contexts_more() -> None:
    by_slots = [_rate("lru", slots, 65536) for slots in range(2048, 16384, 512)]
    assert by_slots == sorted(by_slots, reverse=True)
    by_context = [_rate("lru", 4096, context) for context in range(4097, 200_000, 5000)]
    assert by_context == sorted(by_context)
    assert _rate("lru", 4096, 4096) == 0.0  # all of it has a slot
    assert "figure 6" in provenance()


def test_a_policy_that_was_not_replayed_is_refused() -> None:
    with pytest.raises(ValueError, match="policy=arc has no rates"):
        miss_table("arc")


def test_a_decode_step_by_hand() -> None:
    """GLM-5.2 on 8x H200, two requests a rank of 32K tokens each."""
    terms = StepCosts(CELLS["hisparse_sync"]).decode([RankBatch(2, 65536)] * 8, 1)
    coverage = 1 - (1 - 8 / 256) ** 16
    weights = 13.07e9 + (3.63e9 + coverage * 724.8e9) / 8 + 2 * 0.95e9 / 8
    bandwidth = 0.896 * 4.8e12
    assert terms.weights == pytest.approx(weights / bandwidth, rel=0.01)
    flops = 2048 * 78 * 64 * (576 + 512) * 2  # both requests at once, on one of 132 multiprocessors each
    assert terms.attention == pytest.approx(flops / (989e12 / 132 * 0.6343), rel=0.01)
    assert terms.indexer[0] == pytest.approx(65536 * 21 * 128 / bandwidth, rel=0.01)
    assert terms.fixed == pytest.approx(78 * 147.1e-6)
    missed = _rate("lru", 4096, 32769) * 2048
    layer = 2 * missed * 1152  # bytes; each request has a worker of its own, both share the link
    assert terms.exposed_io[0] == pytest.approx(78 * layer * (1 / (2 * 2.455e9) + 1 / 19.8e9), rel=0.001)
    assert terms.misses[0] == pytest.approx(16 * 78 * missed, rel=0.001)


def test_attention_takes_as_long_as_one_until_every_multiprocessor_has_a_request() -> None:
    quick = load_cells(["experiment=fig8", "offload=full_kv", "platform.memory_bandwidth=1000TB"])[0]
    costs = StepCosts(quick)
    one, all_busy, one_more = (float(costs.decode([RankBatch(n, n * 32768)] * 8, 1).attention) for n in (1, 132, 133))
    assert (all_busy, one_more) == pytest.approx((one, 2 * one))
    flops = 2048 * 78 * 64 * (576 + 512) * 2
    assert 132 * flops / one == pytest.approx(640e12, rel=0.03)  # FlashMLA's README on that kernel, all busy


def test_few_heads_take_as_long_as_a_blocks() -> None:
    """Over eight devices a rank has 8 of GLM's 64 heads on each, and 8 times the requests."""
    spread = load_cells(["experiment=fig8", "offload=full_kv", "engine.data_parallel=1"])[0]
    eight = StepCosts(spread).decode([RankBatch(8, 8 * 32768)], 1).attention
    assert eight == pytest.approx(float(StepCosts(CELLS["full_kv"]).decode([RankBatch(1, 32768)] * 8, 1).attention))


def test_attention_that_is_split_fills_the_device_with_one_request() -> None:
    """GQA's kernels split a context: many requests take as many times as long as one."""
    cell = next(c for c in load_cells(["experiment=fig5"]) if c.platform.name == "gh200")
    costs = StepCosts(cell)
    one, eight = (costs.decode([RankBatch(n, n * 32768)], 1).attention for n in (1, 8))
    assert eight == pytest.approx(8 * float(np.max(one)))


def test_many_requests_share_the_link() -> None:
    costs = StepCosts(CELLS["hisparse_sync"])
    io = [costs.decode([RankBatch(n, n * 32768)] * 8, 1).exposed_io[0] for n in (1, 4, 16, 32)]
    assert io == sorted(io)
    assert io[1] - io[0] == pytest.approx(3 / 12 * (io[2] - io[1]))  # a request more is its bytes over the link more
    assert io[3] == pytest.approx(io[0] * (1 / 2.455 + 32 / 19.8) / (1 / 2.455 + 1 / 19.8), rel=0.001)


def test_prefetch_exposes_the_anchors_alone_while_the_rest_fits() -> None:
    sync, prefetch = (
        StepCosts(CELLS[s]).decode([RankBatch(1, 32768)] * 8, 1) for s in ("hisparse_sync", "hisparse_prefetch")
    )
    assert prefetch.exposed_io[0] == pytest.approx(sync.exposed_io[0] * 21 / 78 + 57 * 16.26e-6)


def test_prefill_scales_as_its_parts() -> None:
    """Twice the ranks at work take no more time alone, but more of the shared experts' time."""
    costs = StepCosts(CELLS["full_kv"])
    chunk, idle = RankChunks(((0, 8192, False),)), RankChunks(())
    one, all_ranks = costs.prefill([chunk] + [idle] * 7), costs.prefill([chunk] * 8)
    assert one < all_ranks < 8 * one
    late = costs.prefill([RankChunks(((500_000, 8192, False),))] * 8)
    assert late > all_ranks  # the indexer sees the whole context


def test_a_rank_cut_in_chunks_takes_what_it_took_whole() -> None:
    costs = StepCosts(CELLS["full_kv"])
    whole = costs.prefill([RankChunks(((0, 16384, True),))])
    cut = sum(costs.prefill([RankChunks(((start, 4096, False),))]) for start in range(0, 16384, 4096))
    assert cut == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("key", ["layer_s", "attention_efficiency", "prefill_efficiency", "worker_rate"])
def test_a_scalar_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"platform=h200x8 has no platform.costs.{key}.value"):
        load_cells(["experiment=fig8", "offload=hisparse_sync", f"platform.costs.{key}.value=null"])
