"""The sums behind a doubted row of `analysis/standing.csv`, from published numbers, data sheets and sizes."""

from __future__ import annotations

from harness.config import load_cells
from harness.model_sizes import model_size
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
