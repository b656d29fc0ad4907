"""Virtual time: jumping equals stepping, nothing is lost, Little's law, and systems that must agree."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import load_cells
from harness.loadgen.metrics import Rules, measure
from harness.records import RequestRecord
from harness.schema import AdmissionRule, Config, Prefetch
from harness.simulation.costs import StepCosts
from harness.simulation.load import closed_loop, simulate_point
from harness.simulation.misses import MissTable
from harness.simulation.pacing import ClosedLoop, GivenTimes, Pacing
from harness.simulation.point import Asked, SimulatedPoint, simulate

CELLS = {cell.offload.system.value: cell for cell in load_cells(["experiment=fig8"])}
SYSTEMS = sorted(CELLS)
ASKED = st.lists(
    st.builds(Asked, prompt_len=st.integers(1, 30000), output_len=st.integers(1, 60)), min_size=1, max_size=30
)


def _totals(requests: list[RequestRecord]) -> dict[str, int]:
    return {r.request_id: sum(r.chunk_tokens) for r in requests}


def _token_times(record: RequestRecord) -> dict[int, float]:
    """Tokens had -> when the last of them came, at the ends of chunks."""
    return dict(zip(np.cumsum(record.chunk_tokens).tolist(), record.chunk_times_s, strict=True))


def _pacing(kind: str, count: int) -> Pacing:
    return GivenTimes([0.37 * n for n in range(count)]) if kind == "open" else ClosedLoop(count, max(1, count // 2))


def _run(config: Config, asked: list[Asked], kind: str, jump: bool) -> SimulatedPoint:
    return simulate(config, asked, _pacing(kind, len(asked)), jump=jump)


@given(asked=ASKED, system=st.sampled_from(SYSTEMS), kind=st.sampled_from(["closed", "open"]))
@settings(max_examples=35)
def test_jumping_is_stepping_to_the_bit(asked: list[Asked], system: str, kind: str) -> None:
    jumped, stepped = (_run(CELLS[system], asked, kind, jump) for jump in (True, False))
    slow = {r.request_id: r for r in stepped.requests}
    assert [r.request_id for r in jumped.requests] == [r.request_id for r in stepped.requests]
    for record in jumped.requests:
        assert _token_times(record).items() <= _token_times(slow[record.request_id]).items()
        assert record.end_s == slow[record.request_id].end_s
    assert jumped.stats.decode_steps == stepped.stats.decode_steps
    assert jumped.stats.misses == pytest.approx(stepped.stats.misses, abs=1) if jumped.stats.misses else True


@given(asked=ASKED, system=st.sampled_from(SYSTEMS), kind=st.sampled_from(["closed", "open"]))
@settings(max_examples=35)
def test_tokens_are_conserved_and_littles_law_holds(asked: list[Asked], system: str, kind: str) -> None:
    point = _run(CELLS[system], asked, kind, jump=True)
    assert _totals(point.requests) == {f"request-{n:05d}": a.output_len for n, a in enumerate(asked)}
    assert point.stats.prefill_tokens == sum(a.prompt_len for a in asked)
    assert point.stats.decode_tokens == sum(a.output_len - 1 for a in asked)
    _little(point.requests)


def _little(requests: list[RequestRecord]) -> None:
    """Mean number in the system, counted over time, is arrival rate x mean time in it."""
    ends = [r.end_s for r in requests if r.end_s is not None]
    span = max(ends) - min(r.scheduled_s for r in requests)
    events = sorted([(r.scheduled_s, 1) for r in requests] + [(end, -1) for end in ends])
    area = inside = 0.0
    for (at, change), (after, _) in zip(events, [*events[1:], events[-1]], strict=True):
        inside += change
        area += inside * (after - at)
    e2e = np.mean([end - r.scheduled_s for r, end in zip(requests, ends, strict=True)])
    assert area / span == pytest.approx(len(requests) / span * e2e)


def test_a_closed_loop_keeps_its_concurrency() -> None:
    requests, measures, stats = simulate_point(CELLS["full_kv"], 64, 128)
    assert stats.peak_running == 24
    open_at = [sum(r.scheduled_s <= t < r.end_s for r in requests if r.end_s) for t in (1.0, 300.0, 600.0)]
    assert open_at == [64, 64, 64]
    assert measures["completed"] == 128


def test_zero_misses_are_the_oracle() -> None:
    none = MissTable({(s, c): 0.0 for s in (1.0, 8.0) for c in (1.0, 64.0)})
    asked, runs = [Asked(32768, 512)] * 32, {}
    for system in ("no_io_oracle", "hisparse_sync", "hisparse_prefetch"):
        config = copy.deepcopy(CELLS[system])
        config.platform.costs.link_rate.value = 1e15  # staging costs nothing either
        runs[system] = simulate(config, asked, ClosedLoop(32, 32), costs=StepCosts(config, none))
    times = {s: [r.chunk_times_s[-1] for r in run.requests] for s, run in runs.items()}
    assert times["hisparse_sync"] == pytest.approx(times["no_io_oracle"], rel=1e-6)
    assert times["hisparse_prefetch"] == times["hisparse_sync"]


def test_more_fetching_never_helps() -> None:
    """oracle <= prefetch <= sync <= fetch_all, in TPOT at every concurrency."""
    fetch_all = load_cells(["experiment=fig8", "offload=fetch_all"])[0]
    for c in (8, 64):
        tpot = [
            float(simulate_point(config, c, c)[1]["mean_tpot_ms"] or 0)
            for config in (CELLS["no_io_oracle"], CELLS["hisparse_prefetch"], CELLS["hisparse_sync"], fetch_all)
        ]
        assert tpot == sorted(tpot)
        assert tpot[-1] > 2 * tpot[0]


@given(st.sampled_from(SYSTEMS), st.integers(1, 5), st.integers(1, 4), st.integers(1, 30000), st.integers(1, 60))
@settings(max_examples=25)
def test_one_rank_stands_for_all(system: str, workers: int, rounds: int, input_len: int, output_len: int) -> None:
    config = copy.deepcopy(CELLS[system])
    config.workload.input_len, config.workload.output_len = input_len, output_len
    one, all_ranks = (closed_loop(config, 8 * workers, 8 * workers * rounds, mirror=mirror) for mirror in (True, False))
    assert one.stats == all_ranks.stats

    def by_id(point: SimulatedPoint) -> dict[str, RequestRecord]:
        return {r.request_id: r for r in point.requests}

    assert by_id(one) == by_id(all_ranks)


@given(asked=ASKED, rule=st.sampled_from(list(AdmissionRule)))
@settings(max_examples=30)
def test_every_admission_rule_ends_every_request(asked: list[Asked], rule: AdmissionRule) -> None:
    config = copy.deepcopy(CELLS["hisparse_sync"])
    config.engine.admission = rule
    if rule is not AdmissionRule.full_output:
        config.engine.device_kv_budget, config.engine.host_kv_budget = 6 * 10**9, 12 * 10**9
        config.engine.data_parallel = 1
    point = _run(config, asked, "closed", jump=True)
    assert _totals(point.requests) == {f"request-{n:05d}": a.output_len for n, a in enumerate(asked)}


def test_measures_are_the_load_generators() -> None:
    requests, measures, _ = simulate_point(CELLS["hisparse_sync"], 8, 16)
    assert measures == measure(requests, Rules(devices=8))
    assert measures["total_output_tokens"] == 16 * 8192
    assert measures["output_throughput_per_device"] == pytest.approx(float(measures["output_throughput"] or 0) / 8)


def test_speculative_prefetch_gains_nothing() -> None:
    """HiSparse, section 4.6: no measurable gain; modelled as none."""
    config = copy.deepcopy(CELLS["hisparse_prefetch"])
    config.offload.prefetch = Prefetch.speculative
    assert simulate_point(config, 8, 8)[1] == simulate_point(CELLS["hisparse_sync"], 8, 8)[1]
