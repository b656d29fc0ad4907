"""What a composed config must satisfy before anything starts, and the values it leaves to be derived."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.bounds import number_problem
from harness.load_rules import load_problems, workload_problems
from harness.model_rules import complete_selector, model_problem
from harness.offline_rules import offline_problems
from harness.replay_rules import complete_from_trace
from harness.schema import (
    AdmissionRule,
    Config,
    Device,
    EngineConfig,
    EngineKind,
    LocalityConfig,
    ModelConfig,
    OffloadConfig,
    OffloadSystem,
    PlatformConfig,
    PolicyConfig,
    Prefetch,
    SelectorConfig,
    SelectorKind,
    WorkloadKind,
)
from harness.serving_rules import complete_serving
from harness.simulated_rules import AUTO, complete_simulated
from harness.units import parse_bytes


class ConfigError(ValueError):
    """A config that cannot run. The message is one line: the key, what is wrong, what would be right."""


MAX_NAME = 100  # of an experiment or a model, which become folders
MAX_TEMPERATURE = 100.0


def complete(config: Config) -> Config:
    """Fill derived values in place, check the rest, and return the config. Raises ConfigError."""
    _check_names(config)
    _refuse(number_problem(config))
    _refuse(model_problem(config.model))
    _complete_workload(config)
    _complete_lengths(config)
    _refuse(complete_selector(config))
    _complete_offload(config)
    _check_admission(config)
    _refuse(complete_serving(config))
    _complete_sizes(config)
    _refuse(complete_simulated(config))
    _check_device(config)
    _check_cluster(config)
    _check_workload(config)
    _refuse_first(offline_problems(config))
    _check_load(config)
    _check_trace(config)
    _drop_unused(config)
    return config


def _check_names(config: Config) -> None:
    """Names that become folders."""
    for key, name in (("name", config.name), ("model.name", config.model.name)):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or len(name) > MAX_NAME:
            raise ConfigError(
                f"{key}={name[:40]!r} names a folder: use at most {MAX_NAME} letters, digits, '_', '-' and '.'"
            )


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise ConfigError(problem)


def _complete_workload(config: Config) -> None:
    try:
        complete_from_trace(config)
    except ValueError as error:  # of a trace that is none, or is another model's
        raise ConfigError(str(error)) from error


def _complete_lengths(config: Config) -> None:
    longest = config.model.max_positions
    if not config.engine.kind.takes_requests:
        config.engine.context_len = min(longest, config.workload.input_len + config.workload.output_len)
    if config.engine.context_len is None:
        config.engine.context_len = longest
    if not 1 <= config.engine.context_len <= longest:
        raise ConfigError(
            f"engine.context_len={config.engine.context_len} must be between 1 and model.max_positions={longest}"
        )


def _complete_offload(config: Config) -> None:
    _complete_prefetch(config.offload)
    offload, k = config.offload, config.top_k
    if offload.system is OffloadSystem.full_kv:
        offload.cache_slots = None
    elif offload.system is OffloadSystem.fetch_all:
        offload.cache_slots = k  # a staging area for one selection, nothing kept
    elif offload.cache_slots is None:
        offload.cache_slots = min(2 * k, max(k, config.context_len))
    elif offload.cache_slots < k:
        raise ConfigError(
            f"offload.cache_slots={offload.cache_slots} (B) is smaller than k={k}: "
            f"choose at least {k}, so that one selection fits"
        )


_PREFETCHES = {  # the first is the default
    OffloadSystem.hisparse_prefetch: (Prefetch.exact, Prefetch.speculative),
    OffloadSystem.no_io_oracle: (Prefetch.exact, Prefetch.none),
}


def _complete_prefetch(offload: OffloadConfig) -> None:
    valid = _PREFETCHES.get(offload.system, (Prefetch.none,))
    if offload.prefetch is None:
        offload.prefetch = valid[0]
    if offload.prefetch not in valid:
        raise ConfigError(
            f"offload.prefetch={offload.prefetch.value} cannot run with offload={offload.system.value}: choose "
            f"{' or '.join(prefetch.value for prefetch in valid)}, or another offload system"
        )
    if not offload.system.keeps_slots:
        offload.cold_start = OffloadConfig().cold_start  # there is no cache that could start cold


def _check_admission(config: Config) -> None:
    engine = config.engine
    if engine.admission is AdmissionRule.slots and not config.offload.system.offloads:
        raise ConfigError(
            f"engine.admission=slots counts device cache slots, which offload={config.offload.system.value} has not; "
            "choose full_output or new_token_ratio"
        )
    if engine.admission is not AdmissionRule.new_token_ratio:
        engine.schedule_conservativeness = EngineConfig().schedule_conservativeness


def _complete_sizes(config: Config) -> None:
    for owner, group, key in (
        (config.engine, "engine", "device_kv_budget"),
        (config.engine, "engine", "host_kv_budget"),
        (config.platform, "platform", "memory"),
        (config.platform, "platform", "device_memory"),
        (config.platform, "platform", "memory_bandwidth"),
        (config.platform, "platform", "host_link"),
        (config.platform, "platform", "host_memory"),
        (config.platform.link, "platform.link", "bandwidth"),
    ):
        value = getattr(owner, key)
        if value is not None and not (value == AUTO and config.engine.kind.models_memory):
            try:
                setattr(owner, key, parse_bytes(value))
            except ValueError as error:
                raise ConfigError(f"{group}.{key}: {error}") from error
    link = config.platform.link
    if link.bandwidth is not None and int(link.bandwidth) < 1:
        raise ConfigError(
            "platform.link.bandwidth=0 moves nothing: give bytes a second (2GB), or null for no emulation"
        )
    if link.bandwidth is None and link.latency_us:
        raise ConfigError(
            f"platform.link.latency_us={link.latency_us} needs an emulated link: set platform.link.bandwidth (2GB) too"
        )


def _check_device(config: Config) -> None:
    """What a GPU does not go with. Whether there is one is found out where the engine starts."""
    platform = config.platform
    if platform.device is Device.cpu:
        platform.cuda_graphs = PlatformConfig().cuda_graphs
        if config.engine.kind is EngineKind.native and config.engine.batch_invariant and platform.num_cpus >= 2:
            raise ConfigError(
                f"engine.batch_invariant=true with platform.num_cpus={platform.num_cpus:g}: how threads share a matrix "
                "product depends on the batch; choose platform.num_cpus=1"
            )
        return
    if config.engine.kind in (EngineKind.sglang, EngineKind.external):  # neither is this project's to compute
        return
    if config.engine.kind not in (EngineKind.native, EngineKind.kernels):
        raise ConfigError(
            f"platform.device=cuda cannot run engine={config.engine.kind.value}, which computes on the CPU: choose "
            "platform=cpu"
        )
    if platform.num_devices != 1:
        raise ConfigError(
            f"platform.num_devices={platform.num_devices} with device=cuda: the engine computes on one GPU"
        )
    if platform.link.bandwidth is not None:
        raise ConfigError(
            "platform.link.bandwidth emulates a link, and a GPU has its own: leave it null with device=cuda"
        )
    if config.engine.batch_invariant:
        raise ConfigError(
            "engine.batch_invariant=true is a promise about the CPU's matrix products: leave it false with "
            "platform.device=cuda"
        )


def _check_cluster(config: Config) -> None:
    address = config.cluster.address or ""
    if "://" in address:
        raise ConfigError(
            f"cluster.address={address} is Ray's client mode, which cannot place a cell: run this command on a node of "
            "the cluster, with cluster.address=auto or host:port"
        )


def _check_workload(config: Config) -> None:
    work = config.workload
    if work.temperature > MAX_TEMPERATURE:
        raise ConfigError(f"workload.temperature={work.temperature} must be at most {MAX_TEMPERATURE:g}")
    _refuse_first(workload_problems(config))


def _check_load(config: Config) -> None:
    if problems := list(load_problems(config)):
        raise ConfigError("; ".join(problems))  # all of them: one choice (load.mode) brings several


def _refuse_first(problems: Iterator[str]) -> None:
    for problem in problems:
        raise ConfigError(problem)


def _check_trace(config: Config) -> None:
    if config.trace.record and config.selector.kind is SelectorKind.dense:
        raise ConfigError("trace.record=true has nothing to record with selector=dense, which takes all positions")


def _drop_unused(config: Config) -> None:
    """Keys that mean nothing for this cell go to their defaults: setting one does not make another cell."""
    if config.selector.kind is not SelectorKind.quest:
        config.selector.page_size = SelectorConfig().page_size
    if config.selector.kind is not SelectorKind.window:
        config.selector.sink = SelectorConfig().sink
    if config.workload.kind is WorkloadKind.random_ids:
        config.workload.files = []
    if config.workload.kind is not WorkloadKind.selections:
        config.workload.miss_rate = None
    if config.workload.kind is not WorkloadKind.synthetic_selections:
        config.workload.locality = LocalityConfig()
    if config.workload.kind is not WorkloadKind.selection_trace:
        config.workload.trace = None
    if config.engine.kind is not EngineKind.replay:
        config.replay = PolicyConfig()
    if config.model.weights != "random":
        config.model.seed, config.model.embed_common = ModelConfig().seed, ModelConfig().embed_common
