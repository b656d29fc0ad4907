"""Miss rates of a model by replay of what its selector selects: recorded here, from prompts that no workload sends."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

from harness.calibration.engine_steps import Stepper, roomy
from harness.engine.selectors.recording import Recording, trace_header
from harness.schema import Config
from workloads.replay import ReplayConfig, replay
from workloads.traces import Trace

_SLOTS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0)  # B over k
_REQUESTS = 12
_STEPS = 96
_SEED = 1


def miss_rates(config: Config) -> list[list[float]]:
    """[B/k, context/k, misses over selected] of the engine's policy, at two contexts; caches begin as the cell's do."""
    config = copy.deepcopy(config)
    config.trace.record = True
    k = config.top_k
    long = min(config.workload.input_len, config.context_len - _STEPS - 2)
    found = []
    for prompt_len in sorted({long, max(2 * k, long // 2)}):
        stepper = Stepper(roomy(config, _REQUESTS), _SEED)
        stepper.fill(_REQUESTS, prompt_len, _STEPS + 1)
        while stepper.engine.num_running:
            stepper.step()
        rates = _replayed(stepper, config, [slots for slots in _SLOTS if slots * k < prompt_len])
        found += [[slots, (prompt_len + _STEPS / 2) / k, rate] for slots, rate in rates]
    return found


def _replayed(stepper: Stepper, config: Config, ratios: list[float]) -> list[tuple[float, float]]:
    selector, k = stepper.executor.selector, config.top_k
    assert isinstance(selector, Recording)
    tail = config.offload.cold_start.value == "last"
    settings = [ReplayConfig("lru", round(slots * k), tail=tail) for slots in ratios]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "selections.trace")
        path.write_bytes(selector.take().trace_bytes(trace_header(config)))
        trace = Trace(path)
        results = replay([trace.blocks(request, layer) for request, layer in trace.streams], settings)
    return [(slots, result.miss_rate) for slots, result in zip(ratios, results, strict=True)]
