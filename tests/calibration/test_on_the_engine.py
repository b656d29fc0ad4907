"""The microbenchmarks on the engine itself: what they count is what the engine did. Seconds are never asserted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness import calibrate
from harness.calibrate import main
from harness.calibration import selections
from harness.calibration.copies import time_fetches
from harness.calibration.engine_steps import STEPS, Stepper, roomy, time_steps
from harness.config import load_cells
from harness.schema import Config
from harness.simulation import simulate_point

SMALL = ["workload.input_len=192", "workload.output_len=32", "engine.context_len=320", "engine.prefill_chunk_tokens=80"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As calibration computes; several threads wait for one another where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _cell(system: str, *more: str) -> Config:
    (cell,) = load_cells(["experiment=quickstart", "tracker=none", f"offload={system}", *SMALL, *more])
    return cell


def test_steps_and_chunks_are_counted_as_they_ran() -> None:
    decodes, chunks = time_steps(_cell("fetch_all"), 2, seed=0)
    assert [timing.requests for timing in decodes] == [2, 1, 2, 1]
    assert min(timing.seconds for timing in decodes) > 0 and min(chunk.seconds for chunk in chunks) > 0
    for timing in decodes:
        assert timing.fetches == 4  # layers
        selected = min(64, int(timing.context))
        assert timing.records == pytest.approx(4 * timing.requests * (selected - 1), rel=0.05)
    assert decodes[0].context == pytest.approx(192 + 3 + STEPS / 2, abs=4) and decodes[2].context < 100
    one = [c for c in chunks if c.chunks == 1]
    assert {(c.tokens, c.positions, c.pairs, c.prompts) for c in one} >= {
        (80, 80, 6400, 0),
        (80, 160, 12800, 0),
        (32, 192, 6144, 1),
        (24, 24, 576, 1),
    }
    assert sum(c.prompts for c in chunks) == 2 + 2 + 2 * 4


def test_miss_rates_are_those_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay of what was recorded says what the engine's own cache missed, at its B."""
    monkeypatch.setattr(selections, "_REQUESTS", 2)
    monkeypatch.setattr(selections, "_STEPS", 48)
    cell = _cell("hisparse_sync", "offload.cache_slots=96")
    rates = {(slots, context): rate for slots, context, rate in selections.miss_rates(cell)}
    stepper = Stepper(roomy(cell, 2), selections._SEED)
    stepper.fill(2, 192, selections._STEPS + 1)
    while stepper.engine.num_running:
        stepper.step()
    stats = stepper.engine.stats()
    assert stats.misses and stats.lookups
    assert rates[1.5, (192 + 24) / 64] == pytest.approx(stats.misses / stats.lookups, rel=0.02)
    by_slots = [rates[slots, (192 + 24) / 64] for slots in (1.0, 1.25, 1.5, 2.0)]
    assert by_slots == sorted(by_slots, reverse=True)


def test_a_fetch_has_a_cost() -> None:
    found = time_fetches(_cell("hisparse_sync"))
    assert found.values[0] > 0 and len(found.values) == 2


@pytest.mark.slow
def test_the_command_writes_a_platform_that_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real command on one small cell, with the server it starts; then the prediction from its file."""
    monkeypatch.setattr(calibrate, "_cells", lambda name: [_cell("hisparse_sync", "load.concurrencies=[1,2]")])
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):  # and back as they were
        monkeypatch.setenv(name, "")
    assert main(["quickstart", "--out", str(tmp_path / "platform" / "here.yaml")]) == 0
    simulated = ["experiment=quickstart", "engine=simulated_native", "platform=here", "offload=hisparse_sync", *SMALL]
    (cell,) = load_cells([*simulated, "load.concurrencies=[1,2]"], tmp_path)
    requests, measures, stats = simulate_point(cell, 2, 2)
    assert stats.decode_tokens == 2 * 31 and len(requests) == 2
    assert all(scalar.value is not None for scalar in (cell.platform.serving.token_s, cell.platform.serving.request_s))
    assert measures["mean_tpot_ms"]
