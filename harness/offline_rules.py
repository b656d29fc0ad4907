"""What goes with an engine that serves nothing, and nowhere else: part of `harness.validate`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.replay_rules import check_replay
from harness.schema import Config, EngineKind, OffloadSystem, SelectorKind, WorkloadKind


def offline_problems(config: Config) -> Iterator[str]:
    """What is wrong with a completed config of engine=kernels, replay or quality, or with a workload of theirs."""
    kind = config.engine.kind
    if kind is EngineKind.quality:
        yield from _quality_problems(config)
        return
    yield from _workload_problems(config)
    if kind is EngineKind.replay:
        try:
            check_replay(config)
        except ValueError as error:
            yield str(error)
    if kind is EngineKind.kernels:
        yield from _kernel_problems(config)


def _workload_problems(config: Config) -> Iterator[str]:
    work, kind = config.workload, config.engine.kind
    if kind.takes_requests != work.kind.sends_requests:
        fit = [k.value for k in WorkloadKind if k.sends_requests == kind.takes_requests]
        yield (
            f"workload={work.kind.value} cannot drive engine={kind.value}: choose from {', '.join(fit)}"
            if kind.takes_requests
            else f"engine={kind.value} takes selections, not requests: choose workload.kind from {', '.join(fit)}"
        )
    if (kind is EngineKind.kernels) != (work.kind is WorkloadKind.selections):
        yield (
            f"workload={work.kind.value} and engine={kind.value} do not go together: kernels takes selections, replay "
            "takes synthetic_selections and selection_trace"
        )


def _kernel_problems(config: Config) -> Iterator[str]:
    work = config.workload
    if config.offload.system is not OffloadSystem.hisparse_sync:
        yield (
            f"offload={config.offload.system.value} has no resolve to time: engine=kernels takes offload=hisparse_sync"
        )
    if work.miss_rate is None or not 0 < work.miss_rate <= 1:
        yield f"workload.miss_rate={work.miss_rate} must be above 0 and at most 1 for engine=kernels"
        return
    slots = config.offload.cache_slots or 0
    needed = slots + math.ceil(work.miss_rate * config.top_k) + 1
    if work.input_len < needed:
        yield (
            f"workload.input_len={work.input_len} positions leave too few outside a cache of {slots} slots: "
            f"at least {needed} are needed"
        )


def _quality_problems(config: Config) -> Iterator[str]:
    if config.workload.kind is not WorkloadKind.text_files:
        yield (
            f"workload={config.workload.kind.value} is no text that a model could be right about: engine=quality takes "
            "workload=text_files"
        )
    if config.selector.kind in (SelectorKind.dsa, SelectorKind.nsa):
        yield (
            f"selector={config.selector.kind.value} is part of its model, not a choice: engine=quality takes dense, "
            "quest, exact_topk and window"
        )
    if not config.offload.system.outputs_valid:
        yield f"offload={config.offload.system.value} has no valid outputs: engine=quality judges them"
