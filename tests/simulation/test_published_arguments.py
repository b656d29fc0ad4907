"""The sums behind the reasons in `analysis/standing.csv`, from published numbers, data sheets and sizes."""

from __future__ import annotations

import pytest

from harness.config import load_cells
from harness.model_sizes import device_weights, model_size
from harness.simulation.load import closed_loop
from harness.simulation.pools import record_bytes_per_token, state_bytes_per_token
from harness.simulation.work import work_of

TOKENS, OUTPUT = 40_960, 8192


def test_glm51s_hisparse_row_at_32k_leaves_a_step_less_than_its_parts() -> None:
    """Figure 5: 1919 tok/s."""
    (cell,) = load_cells(["experiment=fig1", "offload=hisparse_sync"])
    (full,) = load_cells(["experiment=fig8", "offload=full_kv"])
    fourth = 4 * TOKENS * (record_bytes_per_token(full) + state_bytes_per_token(full))  # more than there was room for
    held = 4097 * record_bytes_per_token(cell) + TOKENS * state_bytes_per_token(cell)
    running = 8 * int(fourth / held)
    decode_s = 256 * OUTPUT / 1919 - 256 / 8 * 10.7  # published mean TTFT at 8: a prompt on each rank
    allowed_ms = 1e3 * decode_s / (256 * OUTPUT / running)

    coverage = model_size(cell.model).coverage
    experts_ms = 1e3 * work_of(cell).expert_weight_bytes * (coverage(running) - coverage(8)) / 4.8e12
    attention_ms = 78 * 0.060 * (running / 8 - 1) / 8  # section 4.4: 60 us a layer at batch 8
    parts_ms = 24.1 + experts_ms + attention_ms + 7.7  # a step of the oracle, and sync's IO, published at 8
    assert running == 152
    assert round(allowed_ms) == 54
    assert round(parts_ms) == 57


def test_no_output_length_serves_all_of_qwens_rows() -> None:
    """Figure 5 on GH200, whose output length is not published: 520 tok/s at 200K, 2430 of full KV at 4K."""
    peak_flops, bandwidth, memory = 989e12, 4e12, 96e9
    full = next(cell for cell in load_cells(["experiment=fig5"]) if cell.platform.name == "gh200")
    assert (full.offload.system.offloads, full.workload.input_len) == (False, 4096)
    work, size = work_of(full), model_size(full.model)
    prompt = 204_800
    flops = prompt * (work.rank_flops + work.spread_flops - 2 * size.head) + work.pair_flops * prompt**2 / 2
    least_output = 520 * flops / peak_flops  # or prompts alone take longer than there is
    assert round(least_output, -1) == 9260

    record, output = record_bytes_per_token(full), least_output
    whole = (memory - device_weights(full)) / (record * (4096 + output))
    half_grown = (0.87 * memory - device_weights(full)) / (record * (4096 + output / 2))  # SGLang's share of memory
    running = int(max(whole, half_grown))
    read = work.rank_weight_bytes + work.expert_weight_bytes * size.coverage(running)
    assert running == 26  # and fewer with longer outputs
    assert round(running / (read / bandwidth)) == 2096


def test_glm51s_full_kv_row_at_4k_lies_in_what_figure_8_leaves_open() -> None:
    """2288 tok/s at an unpublished concurrency. Figure 8's TTFT rows leave room for three of 40K, not four."""
    (shipped,) = load_cells(["experiment=fig1", "offload=full_kv"])
    request = TOKENS * (record_bytes_per_token(shipped) + state_bytes_per_token(shipped))
    most = 15.1e9
    assert 3 * request < most < 4 * request
    (cell,) = load_cells(
        ["experiment=fig1", "offload=full_kv", "workload.input_len=4096", f"engine.device_kv_budget={most:.0f}"]
    )
    point = closed_loop(cell, 96, 96)  # as many as fit: no last ones that run nearly alone
    assert point.stats.peak_running == 96
    throughput = 96 * OUTPUT / max(r.chunk_times_s[-1] for r in point.requests)
    assert throughput == pytest.approx(2288, rel=0.1)
