"""The sums behind the reasons in `analysis/standing.csv`, from published numbers, data sheets and sizes."""

from __future__ import annotations

import pytest

from harness.config import load_cells
from harness.model_sizes import device_weights, model_size
from harness.simulation.load import closed_loop
from harness.simulation.pools import record_bytes_per_token, state_bytes_per_token
from harness.simulation.work import work_of

TOKENS, OUTPUT = 40_960, 8192


def test_glm51s_hisparse_row_at_32k_needs_more_than_glm52s_leaves() -> None:
    """Figure 5: 1919 tok/s of GLM-5.1; figure 8: 1515 of GLM-5.2, which computes and reads less in every part."""
    (cell,) = load_cells(["experiment=fig1", "offload=hisparse_sync"])
    coverage, work = model_size(cell.model).coverage, work_of(cell)

    def step_ms(requests: float) -> float:
        """Published at 8 for GLM-5.2, the experts that more requests use at the data sheet's rate, and its IO: 7.7 ms
        at 8, 22.0 at 256, so that many or more of it with fewer than 256 at once."""
        experts = 1e3 * work.expert_weight_bytes * (coverage(requests) - coverage(8)) / 4.8e12
        return 24.1 + experts + 7.7 + (22.0 - 7.7) * (requests - 8) / (256 - 8)

    def left_ms(concurrency: int, rate: float, rounds: int) -> float:
        """For each of the steps that so many rounds of requests take one after the other."""
        prompts_s = concurrency / 8 * 10.7  # published mean TTFT at 8: a prompt on each rank
        return 1e3 * (concurrency * OUTPUT / rate - prompts_s) / (rounds * OUTPUT)

    for concurrency in (8, 16, 32, 64, 128):
        assert left_ms(concurrency, 1919, 1) < step_ms(concurrency)
    two_rounds = left_ms(256, 1919, 2)  # of 128 requests in the mean
    assert (round(two_rounds), round(step_ms(128))) == (46, 53)
    assert left_ms(256, 1919, 1) > step_ms(256)  # with all of them at once it would hold
    assert left_ms(256, 1515, 1) > 2 * step_ms(256)  # but then GLM-5.2 would not be so slow
    rate = 256 * OUTPUT / (256 / 8 * 10.7 + OUTPUT * step_ms(256) / 1e3)
    assert round(rate, -2) == 2500


def test_v4_flashs_rows_at_64_are_of_no_one_run() -> None:
    """Figure 4, HiSparse: 1257 tok/s, mean TTFT 171 s, 4308 tok/s in decode alone. Prompts come first and take alike,
    two at a time (26 s at 8 says the same)."""
    rounds = 64 / 2
    prompts_s = rounds * 171 / ((rounds + 1) / 2)
    assert prompts_s == pytest.approx(rounds * 26 / 2.5, rel=0.005)
    decode_s = 64 * OUTPUT / 4308
    assert round(64 * OUTPUT / (prompts_s + decode_s)) == 1157  # not 1257
    left_ms = 1e3 * (64 * OUTPUT / 1257 - prompts_s) / OUTPUT
    step_at_16_ms = 15.9 - 1e3 * 3.5 * 26 / 2.5 / OUTPUT  # without the mean wait for the prompts after one's own
    assert left_ms < step_at_16_ms < 1e3 * decode_s / OUTPUT


def test_v4_flashs_decode_rate_leaves_no_time_for_evenly_routed_experts() -> None:
    """Figure 4: a step of 64 takes 3.4 ms more than one of 16. The experts that 64 tokens use more, if each token's are
    drawn evenly, take longer to read at the data sheet's rate: tokens of a batch share more experts than that."""
    (cell,) = load_cells(["experiment=fig4", "offload=hisparse_sync"])
    more_ms = 1e3 * 64 / 4308 - (15.9 - 1e3 * 3.5 * 26 / 2.5 / OUTPUT)
    coverage = model_size(cell.model).coverage
    read_ms = 1e3 * work_of(cell).expert_weight_bytes * (coverage(64) - coverage(16)) / 7.7e12
    assert round(more_ms, 1) == 3.4
    assert round(read_ms, 1) == 4.4


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
