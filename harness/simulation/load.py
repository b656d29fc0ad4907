"""From a config to the load of one simulated point: the requests' lengths and when they come."""

from __future__ import annotations

from harness.loadgen.metrics import Measures, measure
from harness.records import RequestRecord, ServerStats
from harness.schema import Config
from harness.simulation.costs import StepCosts
from harness.simulation.pacing import ClosedLoop
from harness.simulation.point import Asked, simulate


def simulate_point(
    config: Config, concurrency: int, num_requests: int, costs: StepCosts | None = None
) -> tuple[list[RequestRecord], Measures, ServerStats]:
    """A closed loop of `workload`'s lengths: requests, the load generator's measures of them, the server's counters.

    Raises ConfigError where the platform lacks a number.
    """
    work = config.workload
    asked = [Asked(work.input_len, work.output_len)] * num_requests
    pacing = ClosedLoop(num_requests, concurrency, config.load.stagger_s)
    point = simulate(config, asked, pacing, costs=costs)
    return point.requests, measure(point.requests), point.stats
