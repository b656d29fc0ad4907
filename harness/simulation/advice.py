"""What a planner weighs: runs of one workload over offload system, B and concurrency, and what would change them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from harness.engine.footprint import Footprint, KVBytes
from harness.records import RequestRecord
from harness.schema import Config
from harness.simulation.costs import StepCosts
from harness.simulation.load import closed_loop
from harness.simulation.pools import capacity, make_pools, record_bytes_per_token, state_bytes_per_token

BURSTS = 2  # requests per worker: the first ones come all at once, the second ones as slots become free


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated run. Seconds, tokens a second of the node."""

    config: Config
    concurrency: int
    throughput: float
    ttft_s: float
    tpot_s: float
    running: int

    def meets(self, ttft_s: float | None, tpot_s: float | None) -> bool:
        return (ttft_s is None or self.ttft_s <= ttft_s) and (tpot_s is None or self.tpot_s <= tpot_s)


def outcome(config: Config, concurrency: int, costs: StepCosts | None = None) -> Outcome:
    """A closed loop of the config's workload with BURSTS requests a worker; means over requests."""
    work, count = config.workload, BURSTS * concurrency
    point = closed_loop(config, concurrency, count, costs)
    ends = max(r.chunk_times_s[-1] for r in point.requests)
    ttft = sum(r.chunk_times_s[0] - r.scheduled_s for r in point.requests) / count
    running = point.stats.peak_running or 0
    return Outcome(config, concurrency, count * work.output_len / ends, ttft, _tpot(point.requests), running)


def _tpot(requests: list[RequestRecord]) -> float:
    per = [(r.chunk_times_s[-1] - r.chunk_times_s[0]) / max(1, sum(r.chunk_tokens) - 1) for r in requests]
    return sum(per) / len(per)


def fits(config: Config) -> int:
    """Requests of the workload at once on all ranks; 0 where not even one does."""
    work = config.workload
    if make_pools(config).refusal(work.input_len, work.output_len):
        return 0
    return capacity(config, work.input_len, work.output_len)


def outcomes(config: Config) -> list[Outcome]:
    """Runs at concurrencies that double from one request a rank, up to all that fit."""
    most, costs, ranks = fits(config), StepCosts(config), config.engine.data_parallel or 1
    return [outcome(config, c, costs) for c in _doubling(min(ranks, most), most)] if most else []


def _doubling(first: int, most: int) -> Iterator[int]:
    while first < most:
        yield first
        first *= 2
    yield most


def best(found: list[Outcome], ttft_s: float | None, tpot_s: float | None) -> Outcome | None:
    """The most throughput among those that meet both limits; of equals the lowest concurrency."""
    good = [run for run in found if run.meets(ttft_s, tpot_s)]
    return max(good, key=lambda run: (run.throughput, -run.concurrency), default=None)


def with_slots(config: Config, slots: int) -> Config:
    """The same cell with another B."""
    changed = copy.deepcopy(config)
    changed.offload.cache_slots = slots
    return changed


def with_input(config: Config, input_len: int) -> Config:
    """The same cell with prompts of another length."""
    changed = copy.deepcopy(config)
    changed.workload.input_len = input_len
    changed.engine.context_len = input_len + config.workload.output_len
    return changed


def bytes_of_request(config: Config) -> KVBytes:
    """What one request of the workload holds at its end."""
    return Footprint(config).request(config.workload.input_len + config.workload.output_len)


def host_ratio(config: Config) -> tuple[float, int]:
    """SGLang's host_to_device_ratio for this workload and B, and how many requests of all ranks it lets in.

    The device pool shrinks as the ratio grows, since selection state is set aside for every host token; the smallest
    ratio, in halves, that lets in the most.
    """
    work, engine = config.workload, config.engine
    records, state = record_bytes_per_token(config), state_bytes_per_token(config)
    slots, length = (config.offload.cache_slots or 0) + 1, work.input_len + work.output_len
    budget, host = int(engine.device_kv_budget), int(engine.host_kv_budget) / records
    top = (0.0, 0)
    for halves in range(2, 2 * 128 + 1):
        ratio = halves / 2
        device = budget / (records + ratio * state)
        count = min(int(device // slots), int(min(ratio * device, host) // length), engine.max_running_requests)
        top = max(top, (ratio, count), key=lambda pair: (pair[1], -pair[0]))
    return top[0], top[1] * (engine.data_parallel or 1)


SENSITIVITIES = {  # words -> cost key and factor
    "link a third slower": ("link_rate", 2 / 3),
    "link a third faster": ("link_rate", 4 / 3),
    "fetching worker a third slower": ("worker_rate", 2 / 3),
    "prefill a quarter slower": ("prefill_efficiency", 0.75),
    "prefill a quarter faster": ("prefill_efficiency", 1.25),
    "fixed part of a step half again": ("layer_s", 1.5),
    "attention kernel twice as fast": ("attention_efficiency", 2.0),
}


def sensitivities(run: Outcome) -> list[tuple[str, float, float]]:
    """For each change of one scalar: throughput and TPOT as factors of the run's. Scalars that are not set are left
    out."""
    found = []
    for words, (key, factor) in SENSITIVITIES.items():
        changed = copy.deepcopy(run.config)
        scalar = getattr(changed.platform.costs, key)
        if scalar.value is None:
            continue
        scalar.value *= factor
        other = outcome(changed, run.concurrency)
        found.append((words, other.throughput / run.throughput, other.tpot_s / run.tpot_s))
    return found
