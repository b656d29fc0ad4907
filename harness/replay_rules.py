"""What a cell of engine=replay must satisfy, and what it takes from the trace it replays. ValueError says what not."""

from __future__ import annotations

from harness.schema import Config, OffloadSystem, SelectorKind, WorkloadKind
from workloads.replay.policies import MAX_CACHE_SLOTS, ReplayConfig
from workloads.traces import Trace
from workloads.traces.shipped import find_trace


def complete_from_trace(config: Config) -> None:
    """Model's name, k, prompt and steps of a recorded trace; those that the config says must be the trace's."""
    work = config.workload
    if work.kind is not WorkloadKind.selection_trace:
        return
    if work.trace is None:
        raise ValueError("workload.trace must name a file for workload.kind=selection_trace")
    trace = Trace(find_trace(work.trace))
    header = trace.header
    if config.selector.top_k not in (None, header.top_k):
        raise ValueError(f"selector.top_k={config.selector.top_k} is not that of {work.trace}, k={header.top_k}")
    if header.selector in SelectorKind.__members__ and header.selector != config.selector.kind.value:
        raise ValueError(f"{work.trace} was recorded with selector={header.selector}: set selector={header.selector}")
    config.model.name, config.selector.top_k = header.model, header.top_k
    work.input_len, work.output_len = trace.prompt_len, trace.most_steps


def check_replay(config: Config) -> None:
    """A policy that is known, and caches that hold what one step selects. Call once k and B are known."""
    replay, slots, k = config.replay, config.offload.cache_slots, config.selector.top_k
    if config.offload.system is not OffloadSystem.hisparse_sync:
        raise ValueError(f"engine=replay takes offload=hisparse_sync, not {config.offload.system.value}")
    if k is None or slots is None:
        raise ValueError("engine=replay needs a selector with a k: selector=dense selects everything")
    if slots > MAX_CACHE_SLOTS:
        raise ValueError(f"offload.cache_slots={slots} is above {MAX_CACHE_SLOTS}, the most that is replayed")
    try:
        ReplayConfig(replay.policy, slots, tokens=replay.tokens, parameters=replay.parameters)
    except ValueError as error:
        raise ValueError(f"replay.{error}") from error
    if replay.policy != "staging" and replay.tokens * k > slots:
        raise ValueError(
            f"offload.cache_slots={slots} does not hold what the {replay.tokens} tokens of a step select: "
            f"choose at least {replay.tokens * k}"
        )
    if replay.tokens > 1 and config.workload.output_len % replay.tokens:
        raise ValueError(
            f"workload.output_len={config.workload.output_len} is no whole number of steps of "
            f"replay.tokens={replay.tokens}"
        )
