"""From a cell's config to the measurement it asks for."""

from __future__ import annotations

from harness.offline.base import Measures
from harness.offline.kernels import measure_kernels
from harness.schema import Config, EngineKind


def measure(config: Config, concurrency: int, repeat: int) -> Measures:
    """The measures of one point (a subset of `records.MEASURES`). Runs for as long as it takes.

    `concurrency` is the number of requests a step works on. Raises OfflineError.
    """
    assert config.engine.kind is EngineKind.kernels, config.engine.kind
    return measure_kernels(config, concurrency)
