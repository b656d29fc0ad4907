"""Calibration of an engine whose costs are known gives those costs; its file gives them to the simulation."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from fake_engine import CHUNK, FETCH, PAIR, POSITION, PREFIX, PROMPT, RECORD, REQUEST, STEP, TOKEN, FakeEngine

from harness.calibrate import main
from harness.calibration import cells, engine_steps
from harness.calibration.platform_file import Drift, platform_yaml
from harness.calibration.terms import Fit
from harness.config import load_cells
from harness.native_rules import cost_key
from harness.schema import Config, NativeCosts, Scalar, ServingCosts
from harness.simulation import simulate_point
from harness.validate import ConfigError

SERVING = ServingCosts(
    request_s=Scalar(value=1e-3, source="by hand"),
    prompt_token_s=Scalar(value=1e-6, source="by hand"),
    entry_s=Scalar(value=3e-3, source="by hand"),
    step_s=Scalar(value=2e-4, source="by hand"),
    token_s=Scalar(value=1e-4, source="by hand"),
    wake_s=Scalar(value=0.0, source="by hand"),
)
RATES = [[slots, context, 0.25 / slots] for slots in (1.0, 2.0, 4.0) for context in (6.0, 12.0)]


@pytest.fixture(scope="module")
def found() -> dict[str, NativeCosts]:
    """Costs of quickstart's cells, as calibration finds them in the fake engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_steps, "Engine", FakeEngine)
        patch.setattr(engine_steps, "time", FakeEngine.clock)
        patch.setattr(cells, "warm", lambda config: None)
        patch.setattr(cells, "time_fetches", lambda config: Fit((FETCH, RECORD), 0.0))
        patch.setattr(cells, "miss_rates", lambda config: RATES)
        patch.setattr(cells, "reference_s", _Drifting().pace)
        return cells.measure_kinds(cells.kinds_of(_cells("quickstart")), lambda text: None)[0]


@pytest.fixture
def measured(found: dict[str, NativeCosts]) -> dict[str, NativeCosts]:
    """A copy of them, to be changed."""
    return copy.deepcopy(found)


class _Drifting:
    """A machine whose speed changes: the reference loop's seconds, and the engine's by what they are on either side."""

    PACES = (1.0, 1.1, 1.5, 0.9, 1.0)

    def __init__(self) -> None:
        self.turn = 0

    def pace(self, rounds: int) -> float:
        now, then = (self.PACES[turn % len(self.PACES)] for turn in (self.turn, self.turn + 1))
        FakeEngine.clock.slowness = (now + then) / 2
        self.turn += 1
        return now


def _cells(name: str, *more: str, folder: Path | None = None) -> list[Config]:
    return load_cells([f"experiment={name}", "tracker=none", *more], folder)


def _platform(folder: Path, costs: dict[str, NativeCosts], serving: ServingCosts = SERVING) -> Path:
    file = folder / "platform" / "known.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(platform_yaml("known", 1, costs, serving, Drift([1.0])))
    return folder


def _predicted(folder: Path, *more: str) -> list[Config]:
    return _cells("quickstart", "engine=simulated_native", "platform=known", *more, folder=folder)


def test_known_terms_are_recovered(measured: dict[str, NativeCosts]) -> None:
    assert len(measured) == 4
    for key, costs in measured.items():
        found = [costs.step_s.value, costs.request_s.value, costs.position_s.value]
        assert found == pytest.approx([STEP, REQUEST, POSITION], rel=0.02), key
        prompt = [costs.chunk_s, costs.token_s, costs.prefix_s, costs.pair_s, costs.prompt_s]
        expected = [CHUNK, TOKEN, PREFIX, PAIR, PROMPT]
        assert [scalar.value for scalar in prompt] == pytest.approx(expected, rel=0.02), key
        assert "microbenchmark 20" in costs.step_s.source


def test_the_file_gives_back_what_was_measured(measured: dict[str, NativeCosts], tmp_path: Path) -> None:
    for cell in _predicted(_platform(tmp_path, measured)):
        assert cell.platform.native == {cost_key(cell): measured[cost_key(cell)]}  # its own costs alone
        assert cell.platform.serving == SERVING


def test_a_lone_request_by_hand(measured: dict[str, NativeCosts], tmp_path: Path) -> None:
    """768 tokens in chunks of 512 and 256, then 191 decode steps."""
    cell = _predicted(_platform(tmp_path, measured), "offload=full_kv")[0]
    _, measures, stats = simulate_point(cell, 1, 1)
    prefill = 2 * CHUNK + TOKEN * 768 + PREFIX * (512 + 768) + PAIR * (512 * 512 + 256 * 768) + PROMPT
    assert measures["mean_ttft_ms"] == pytest.approx(1e3 * (prefill + 1e-3 + 768e-6), rel=0.02)
    step = STEP + REQUEST + POSITION * (768 + 96) + 2e-4 + 1e-4
    assert measures["mean_tpot_ms"] == pytest.approx(1e3 * step, rel=0.02)
    assert stats.decode_steps == 191


def test_a_crowd_delays_the_first_step(measured: dict[str, NativeCosts], tmp_path: Path) -> None:
    """Each request that arrives beside another takes its share of the step under way."""
    cell = _predicted(_platform(tmp_path, measured), "offload=hisparse_sync")[0]
    alone, crowd = (simulate_point(cell, count, count)[0] for count in (1, 8))
    first = min(request.chunk_times_s[0] for request in crowd)
    assert first - alone[0].chunk_times_s[0] == pytest.approx(7 * 3e-3, rel=1e-6)


def test_a_memory_copy_costs_what_its_fetches_cost(measured: dict[str, NativeCosts], tmp_path: Path) -> None:
    """fetch_all: 63 records a layer of four; the oracle fetches none."""
    folder = _platform(tmp_path, measured)
    fetching, oracle = (_predicted(folder, f"offload={name}")[0] for name in ("fetch_all", "no_io_oracle"))
    (slow, _, stats), (fast, _, _) = (simulate_point(cell, 2, 2) for cell in (fetching, oracle))
    assert stats.exposed_io_seconds is not None and stats.decode_steps is not None
    assert stats.exposed_io_seconds == pytest.approx(191 * 4 * (FETCH + 126 * RECORD), rel=0.02)
    assert slow[0].end_s is not None and fast[0].end_s is not None and slow[0].end_s > fast[0].end_s


def test_budgets_are_the_cells_own(measured: dict[str, NativeCosts], tmp_path: Path) -> None:
    """Full KV admits three at once, as the native engine does under the same budget."""
    folder = _platform(tmp_path, measured)
    _, _, full = simulate_point(_predicted(folder, "offload=full_kv")[0], 16, 16)
    _, _, sparse = simulate_point(_predicted(folder, "offload=hisparse_sync")[0], 16, 16)
    assert (full.peak_running, sparse.peak_running) == (3, 16)
    assert sparse.misses is not None and sparse.lookups is not None
    assert sparse.misses / sparse.lookups == pytest.approx(0.125, rel=0.01)  # B = 2k


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["offload.cache_slots=96", "offload=hisparse_sync"], "run python -m harness.calibrate quickstart"),
        (["model.num_layers=5"], "platform=known was not calibrated for glm_tiny-dsa-k64-full_kv-"),
        (["load.requests_per_worker=null"], "set exactly one of load.num_requests (N)"),
        (["engine.device_kv_budget=auto"], "platform=known has no platform.device_memory"),
        (["engine.data_parallel=2"], "must divide platform.num_devices=1"),
    ],
)
def test_what_was_not_measured_is_refused(
    measured: dict[str, NativeCosts], tmp_path: Path, settings: list[str], said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        _predicted(_platform(tmp_path, measured), *settings)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_file_without_a_needed_scalar_is_refused(measured: dict[str, NativeCosts], tmp_path: Path) -> None:
    system = "fetch_all"
    key = next(key for key in measured if system in key)
    measured[key].record_s = Scalar()
    with pytest.raises(ConfigError, match=f"platform.native.{key}.record_s.value is missing from the platform's file"):
        _predicted(_platform(tmp_path, {key: measured[key]}), f"offload={system}")
    measured[key].record_s = Scalar(value=-1.0, source="?")
    with pytest.raises(ConfigError, match=r"record_s.value=-1.0 must be a finite number and not negative"):
        _predicted(_platform(tmp_path, {key: measured[key]}), f"offload={system}")
    measured[key].record_s = Scalar(value=1.0)
    with pytest.raises(ConfigError, match=r"record_s.source must say what measured the value 1"):
        _predicted(_platform(tmp_path, {key: measured[key]}), f"offload={system}")


def test_a_file_without_what_serving_adds_is_refused(measured: dict[str, NativeCosts], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"platform.serving.request_s.value is missing from the platform's file"):
        _predicted(_platform(tmp_path, measured, ServingCosts()), "offload=full_kv")


def test_miss_rates_are_checked(measured: dict[str, NativeCosts], tmp_path: Path) -> None:
    system = "hisparse_sync"
    key = next(key for key in measured if system in key)
    for rates, said in (([], "miss_rates is missing"), ([[2.0, 6.0, 1.5]], "miss_rates has")):
        measured[key].miss_rates = rates
        with pytest.raises(ConfigError, match=said):
            _predicted(_platform(tmp_path, {key: measured[key]}), f"offload={system}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "no such experiment"),
        (["fig8"], "experiment=fig8 has engine=simulated: only the native engine is timed"),
        (["quickstart", "--out", "here.yaml"], "name a file FOLDER/platform/NAME.yaml"),
    ],
)
def test_the_command_refuses_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
