"""From a cell's config to the measurement it asks for."""

from __future__ import annotations

from harness.offline.base import Measurement
from harness.offline.kernels import measure_kernels
from harness.offline.quality import measure_quality
from harness.offline.replay import measure_replay
from harness.schema import Config, EngineKind


def measure(config: Config, concurrency: int, repeat: int) -> Measurement:
    """One point; its measures are a subset of `records.MEASURES`. Runs for as long as it takes.

    `concurrency` is the number of requests a step works on. Raises OfflineError.
    """
    if config.engine.kind is EngineKind.replay:
        return measure_replay(config, concurrency, repeat)
    if config.engine.kind is EngineKind.quality:
        return Measurement(measure_quality(config, concurrency, repeat))
    assert config.engine.kind is EngineKind.kernels, config.engine.kind
    return Measurement(measure_kernels(config, concurrency))
