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
    if work.name == work.kind.value:  # not named otherwise: by the trace
        work.name = find_trace(work.trace).stem
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
    replay_setting(config)
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


def replay_setting(config: Config) -> ReplayConfig:
    """The cache that a completed config asks for. Raises ValueError naming the key."""
    replay, slots = config.replay, config.offload.cache_slots
    assert slots is not None
    parameters: dict[str, int] = {}
    for text in replay.parameters:
        name, colon, value = text.partition(":")
        if not colon or not value.strip().isdecimal():
            raise ValueError(f"replay.parameters: {text!r} is not NAME:NUMBER, such as buckets:4")
        parameters[name.strip()] = int(value)
    try:
        return ReplayConfig(
            replay.policy,
            slots,
            seed=config.workload.seed,
            tail=not replay.empty,
            tokens=replay.tokens,
            parameters=parameters,
        )
    except ValueError as error:
        raise ValueError(f"replay.{error}") from error
