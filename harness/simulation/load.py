"""From a config to the load of one simulated point: the requests' lengths and when they come."""

from __future__ import annotations

from dataclasses import replace

from harness.loadgen.metrics import Measures, Rules, measure
from harness.records import RequestRecord, ServerStats
from harness.schema import Config
from harness.simulation.pacing import ClosedLoop
from harness.simulation.point import AnyCosts, Asked, SimulatedPoint, simulate


def simulate_point(
    config: Config, concurrency: int, num_requests: int
) -> tuple[list[RequestRecord], Measures, ServerStats]:
    """A closed loop of `workload`'s lengths: requests, the load generator's measures of them, the server's counters.

    Raises ValueError for requests that never fit.
    """
    point = closed_loop(config, concurrency, num_requests)
    return point.requests, measure(point.requests, _rules(config)), point.stats


def _rules(config: Config) -> Rules:
    """What a load generator would measure this point by, but for the steady window: measuring every token once more
    would take longer than simulating it."""
    load = config.load
    return Rules(
        slo_ttft_ms=load.slo_ttft_ms,
        slo_tpot_ms=load.slo_tpot_ms,
        slo_e2el_ms=load.slo_e2el_ms,
        devices=config.platform.num_devices,
        late_after_ms=load.late_after_ms,
    )


def closed_loop(
    config: Config, concurrency: int, num_requests: int, costs: AnyCosts | None = None, *, mirror: bool = True
) -> SimulatedPoint:
    """Requests of the workload's one length by `concurrency` workers.

    Ranks that get the same number of equal requests do the same at the same time; one then stands for all (`mirror`).
    """
    asked, ranks = Asked(config.workload.input_len, config.workload.output_len), config.engine.data_parallel or 1
    stagger_s = config.load.stagger_s
    if not mirror or ranks == 1 or stagger_s or concurrency % ranks or num_requests % ranks:
        pacing = ClosedLoop(num_requests, concurrency, stagger_s)
        return simulate(config, [asked] * num_requests, pacing, costs=costs)
    one = num_requests // ranks
    point = simulate(config, [asked] * one, ClosedLoop(one, concurrency // ranks), mirrored=True, costs=costs)
    requests = [_copy(record, ranks, rank) for record in point.requests for rank in range(ranks)]
    return replace(point, requests=requests)


def _copy(record: RequestRecord, ranks: int, rank: int) -> RequestRecord:
    """The same request on another rank, which got its own in turn."""
    number = int(record.request_id.rpartition("-")[2]) * ranks + rank
    return replace(
        record,
        request_id=f"request-{number:05d}",
        prompt_sha=f"simulated-{number}",
        worker=record.worker * ranks + rank,
    )
