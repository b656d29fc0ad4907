"""The costs of every kind of cell of some experiments, measured in turn."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from harness.calibration.copies import time_fetches, time_waking
from harness.calibration.engine_steps import ChunkTiming, DecodeTiming, time_steps, warm
from harness.calibration.reference_loop import reference_s
from harness.calibration.selections import miss_rates
from harness.calibration.serving import time_serving
from harness.calibration.terms import fit
from harness.native_rules import cost_key
from harness.schema import Config, NativeCosts, Scalar, ServingCosts

Say = Callable[[str], None]
ROUNDS = 3
PACE_ROUNDS = 9  # of the reference loop, each time


@dataclass(slots=True)
class Kind:
    """Cells that cost alike, by one of them, and what was timed of it."""

    config: Config
    most: int  # largest batch
    decodes: list[DecodeTiming] = field(default_factory=list)
    chunks: list[ChunkTiming] = field(default_factory=list)


def kinds_of(cells: Sequence[Config]) -> dict[str, Kind]:
    """Of completed cells of the native engine: key -> kind, the largest concurrency of those that share it."""
    found: dict[str, Kind] = {}
    for cell in cells:
        most = min(max(cell.load.concurrencies), cell.engine.max_running_requests)
        kind = found.setdefault(cost_key(cell), Kind(cell, most))
        kind.most = max(kind.most, most)
    return found


def measure_kinds(kinds: dict[str, Kind], say: Say) -> tuple[dict[str, NativeCosts], list[float]]:
    """Each kind's costs, and the reference loop's seconds between them.

    The machine's speed drifts: every kind is timed in each of several rounds, and its timings count as at the median
    speed, by the reference loop before and after them.
    """
    for key, kind in kinds.items():
        say(f"compiling what {key} needs")
        warm(kind.config)
    paces = [reference_s(PACE_ROUNDS)]
    timed: list[tuple[Kind, float, list[DecodeTiming], list[ChunkTiming]]] = []
    for turn in range(ROUNDS):
        for number, (key, kind) in enumerate(kinds.items(), 1):
            say(f"steps, round {turn + 1} of {ROUNDS}, {number} of {len(kinds)}: {key}")
            decodes, chunks = time_steps(kind.config, kind.most, seed=turn)
            paces.append(reference_s(PACE_ROUNDS))
            timed.append((kind, (paces[-2] + paces[-1]) / 2, decodes, chunks))
    usual = statistics.median(paces)
    for kind, pace, decodes, chunks in timed:
        kind.decodes += [replace(t, seconds=t.seconds * usual / pace) for t in decodes]
        kind.chunks += [replace(t, seconds=t.seconds * usual / pace) for t in chunks]
    rates: dict[str, list[list[float]]] = {}
    return {key: _costs(kind, rates, say) for key, kind in kinds.items()}, paces


def measure_serving(config: Config, say: Say) -> ServingCosts:
    """What serving adds, measured with one cell."""
    say("the server beside its engine")
    found = time_serving(config)
    how = "TTFT of lone requests of two lengths less their prefill in process"
    stream = "streams of 1, 4 and 16 requests less the same steps in process"
    return ServingCosts(
        request_s=_measured(found.request_s, how),
        prompt_token_s=_measured(found.prompt_token_s, how),
        entry_s=_measured(found.entry_s, "first token of a burst of 16 requests less a lone one's"),
        step_s=_measured(found.step_s, stream),
        token_s=_measured(found.token_s, stream),
        wake_s=_measured(time_waking(), "mean lateness of 200 waits of 500 us"),
    )


def _costs(kind: Kind, rates: dict[str, list[list[float]]], say: Say) -> NativeCosts:
    costs, system = NativeCosts(), kind.config.offload.system
    if system.fetches:
        found = time_fetches(kind.config)
        how = "fetches of 1 to 64 records of one layer, waited for"
        costs.fetch_s, costs.record_s = (_measured(value, how) for value in found.values)
    if system.keeps_slots:
        selects = repr((kind.config.model, kind.config.selector, kind.config.offload.cold_start))
        if selects not in rates:
            say(f"selections of {kind.config.model.name} with {kind.config.selector.kind.value}")
            rates[selects] = miss_rates(kind.config)
        costs.miss_rates = rates[selects]
        costs.miss_source = "replay of this model's selections from random prompts, lru"
    _fit_decode(kind, costs)
    _fit_prefill(kind, costs)
    return costs


def _fit_decode(kind: Kind, costs: NativeCosts) -> None:
    fetch_s, record_s = costs.fetch_s.value or 0.0, costs.record_s.value or 0.0
    rows = [(1.0, float(t.requests), t.requests * t.context) for t in kind.decodes]
    seconds = [max(1e-9, t.seconds - t.fetches * fetch_s - t.records * record_s) for t in kind.decodes]
    found = fit(rows, seconds)
    how = f"decode steps in process, 1 to {kind.most} requests at two contexts; median residual {found.residual:.1%}"
    costs.step_s, costs.request_s, costs.position_s = (_measured(value, how) for value in found.values)


def _fit_prefill(kind: Kind, costs: NativeCosts) -> None:
    rows = [(t.chunks, t.tokens, t.positions, t.pairs, t.prompts) for t in kind.chunks]
    found = fit(rows, [t.seconds for t in kind.chunks])
    how = f"prompt chunks in process, {len(rows)} steps; median residual {found.residual:.1%}"
    costs.chunk_s, costs.token_s, costs.prefix_s, costs.pair_s, costs.prompt_s = (
        _measured(value, how) for value in found.values
    )


def _measured(value: float, how: str) -> Scalar:
    return Scalar(value=float(f"{value:.4g}"), source=f"microbenchmark {datetime.date.today()}: {how}")
