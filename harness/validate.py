"""What a composed config must satisfy before anything starts, and the values it leaves to be derived."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from operator import attrgetter

from harness.load_rules import load_problems, workload_problems
from harness.schema import (
    Config,
    EngineKind,
    Family,
    ModelConfig,
    OffloadSystem,
    SelectorConfig,
    SelectorKind,
    WorkloadKind,
)
from harness.units import parse_bytes


class ConfigError(ValueError):
    """A config that cannot run. The message is one line: the key, what is wrong, what would be right."""


SELECTORS = {
    Family.mla: (SelectorKind.dense, SelectorKind.dsa),
    Family.gqa: (SelectorKind.dense, SelectorKind.quest),
}

AT_LEAST_ONE = (  # or null
    "model.num_layers",
    "model.hidden_size",
    "model.num_heads",
    "model.intermediate_size",
    "model.vocab_size",
    "model.max_positions",
    "model.num_kv_heads",
    "model.head_dim",
    "model.q_lora_rank",
    "model.kv_lora_rank",
    "model.qk_nope_head_dim",
    "model.qk_rope_head_dim",
    "model.v_head_dim",
    "model.index_num_heads",
    "model.index_head_dim",
    "selector.page_size",
    "engine.page_size",
    "engine.max_running_requests",
    "engine.prefill_chunk_tokens",
    "workload.input_len",
    "workload.output_len",
    "workload.max_input_len",
    "workload.max_output_len",
    "load.repeats",
    "load.num_requests",
    "load.requests_per_worker",
    "load.processes",
    "platform.num_devices",
)
AT_LEAST_ZERO = (
    "model.seed",
    "model.embed_common",
    "engine.port",
    "workload.temperature",
    "workload.seed",
    "workload.input_spread",
    "workload.output_spread",
    "load.warmup_requests",
    "load.stagger_s",
    "load.min_completed",
    "load.max_failed_share",
    "load.max_token_mismatch",
    "load.late_after_ms",
)
ABOVE_ZERO = (
    "model.rope_theta",
    "model.rms_norm_eps",
    "platform.num_cpus",
    "engine.start_timeout_s",
    "load.connect_timeout_s",
    "load.first_token_timeout_s",
    "load.idle_timeout_s",
    "load.total_timeout_s",
    "load.max_lag_p99_ms",
    "load.max_lag_share",
    "load.max_cpu_share",
    "load.max_seconds",
    "load.request_rate",
    "load.burstiness",
    "load.slowdown",
    "load.slo_ttft_ms",
    "load.slo_tpot_ms",
    "load.slo_e2el_ms",
    "workload.length_scale",
    "cluster.loadgen_cpus",
    "cluster.ready_timeout_s",
)


MAX_NAME = 100  # of an experiment or a model, which become folders
MAX_TEMPERATURE = 100.0


def top_k(config: Config) -> int:
    """k of a completed config: positions a layer may attend to (the whole context for `dense`)."""
    k = config.selector.top_k
    return config.context_len if k is None else k


def complete(config: Config) -> Config:
    """Fill derived values in place, check the rest, and return the config. Raises ConfigError."""
    _check_names(config)
    _check_numbers(config)
    _check_model(config.model)
    _complete_lengths(config)
    _complete_selector(config)
    _complete_offload(config)
    _complete_sizes(config)
    _check_workload(config)
    _check_offline(config)
    _check_load(config)
    _drop_unused(config)
    return config


def _check_numbers(config: Config) -> None:
    for keys, valid, rule in (
        (AT_LEAST_ONE, lambda value: value >= 1, "must be at least 1"),
        (AT_LEAST_ZERO, lambda value: value >= 0, "must not be negative"),
        (ABOVE_ZERO, lambda value: value > 0, "must be above 0"),
    ):
        for key in keys:
            value = attrgetter(key)(config)
            if value is not None and not (math.isfinite(value) and valid(value)):
                raise ConfigError(f"{key}={value} {rule if math.isfinite(value) else 'must be a finite number'}")
    for key, seed in (("model.seed", config.model.seed), ("workload.seed", config.workload.seed)):
        if seed >= 2**63:
            raise ConfigError(f"{key}={seed} must be below 2**63")
    if config.model.embed_common > 1:
        raise ConfigError(f"model.embed_common={config.model.embed_common} is a share: choose 0 to 1")
    if config.engine.port > 65535:
        raise ConfigError(f"engine.port={config.engine.port} must be at most 65535; 0 takes any free port")


def _check_names(config: Config) -> None:
    """Names that become folders."""
    for key, name in (("name", config.name), ("model.name", config.model.name)):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or len(name) > MAX_NAME:
            raise ConfigError(
                f"{key}={name[:40]!r} names a folder: use at most {MAX_NAME} letters, digits, '_', '-' and '.'"
            )


def _check_model(model: ModelConfig) -> None:
    needs = {
        Family.mla: ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        Family.gqa: ("num_kv_heads", "head_dim"),
    }[model.family]
    for key in needs:
        if getattr(model, key) is None:
            raise ConfigError(f"model.{key} must be set for model.family={model.family.value}")
    rotary = "qk_rope_head_dim" if model.family is Family.mla else "head_dim"
    if getattr(model, rotary) % 2:
        raise ConfigError(f"model.{rotary}={getattr(model, rotary)} must be even: it is rotated in two halves")
    if model.family is Family.gqa and model.num_heads % (model.num_kv_heads or 1):
        raise ConfigError(
            f"model.num_heads={model.num_heads} must be a multiple of model.num_kv_heads={model.num_kv_heads}"
        )


def _complete_lengths(config: Config) -> None:
    longest = config.model.max_positions
    if not config.engine.kind.serves:
        config.engine.context_len = min(longest, config.workload.input_len + config.workload.output_len)
    if config.engine.context_len is None:
        config.engine.context_len = longest
    if not 1 <= config.engine.context_len <= longest:
        raise ConfigError(
            f"engine.context_len={config.engine.context_len} must be between 1 and model.max_positions={longest}"
        )


def _complete_selector(config: Config) -> None:
    selector, model = config.selector, config.model
    valid = SELECTORS[model.family]
    if selector.kind not in valid:
        raise ConfigError(
            f"selector={selector.kind.value} cannot run on model={model.name} (family {model.family.value}); "
            f"choose from {', '.join(kind.value for kind in valid)}"
        )
    if selector.kind is SelectorKind.dense:
        if selector.top_k is not None:
            raise ConfigError(f"selector.top_k={selector.top_k} must be null for selector=dense, which takes all")
        return
    if selector.kind is SelectorKind.dsa:
        if model.index_num_heads is None or model.index_head_dim is None:
            raise ConfigError(f"model={model.name} has no indexer: set model.index_num_heads and index_head_dim")
        selector.top_k = model.index_top_k if selector.top_k is None else selector.top_k
    if selector.top_k is None:
        raise ConfigError(f"selector.top_k must be set for selector={selector.kind.value}")
    if not 1 <= selector.top_k <= config.context_len:
        raise ConfigError(
            f"selector.top_k={selector.top_k} must be between 1 and the context, "
            f"engine.context_len={config.context_len}"
        )
    if selector.kind is SelectorKind.quest and selector.top_k % selector.page_size:
        raise ConfigError(
            f"selector.top_k={selector.top_k} must be a multiple of selector.page_size={selector.page_size}, "
            "since Quest takes whole pages"
        )


def _complete_offload(config: Config) -> None:
    offload, k = config.offload, top_k(config)
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


def _complete_sizes(config: Config) -> None:
    for owner, group, key in (
        (config.engine, "engine", "device_kv_budget"),
        (config.engine, "engine", "host_kv_budget"),
        (config.platform, "platform", "memory"),
    ):
        value = getattr(owner, key)
        if value is not None:
            try:
                setattr(owner, key, parse_bytes(value))
            except ValueError as error:
                raise ConfigError(f"{group}.{key}: {error}") from error


def _check_workload(config: Config) -> None:
    work = config.workload
    if work.temperature > MAX_TEMPERATURE:
        raise ConfigError(f"workload.temperature={work.temperature} must be at most {MAX_TEMPERATURE:g}")
    _refuse_first(workload_problems(config))


def _check_offline(config: Config) -> None:
    """What goes with an engine that serves nothing, and nowhere else."""
    work, kind = config.workload, config.engine.kind
    if kind.serves != work.kind.sends_requests:
        fit = [k.value for k in WorkloadKind if k.sends_requests == kind.serves]
        raise ConfigError(
            f"workload={work.kind.value} cannot drive engine={kind.value}: choose from {', '.join(fit)}"
            if kind.serves
            else f"engine={kind.value} takes selections, not requests: choose workload.kind from {', '.join(fit)}"
        )
    if kind is not EngineKind.kernels:
        return
    if config.offload.system is not OffloadSystem.hisparse_sync:
        raise ConfigError(
            f"offload={config.offload.system.value} has no resolve to time: engine=kernels takes offload=hisparse_sync"
        )
    if work.miss_rate is None or not 0 < work.miss_rate <= 1:
        raise ConfigError(f"workload.miss_rate={work.miss_rate} must be above 0 and at most 1 for engine=kernels")
    slots = config.offload.cache_slots or 0
    needed = slots + math.ceil(work.miss_rate * top_k(config)) + 1
    if work.input_len < needed:
        raise ConfigError(
            f"workload.input_len={work.input_len} positions leave too few outside a cache of {slots} slots: "
            f"at least {needed} are needed"
        )


def _check_load(config: Config) -> None:
    _refuse_first(load_problems(config))


def _refuse_first(problems: Iterator[str]) -> None:
    for problem in problems:
        raise ConfigError(problem)


def _drop_unused(config: Config) -> None:
    """Keys that mean nothing for this cell go to their defaults: setting one does not make another cell."""
    if config.selector.kind is not SelectorKind.quest:
        config.selector.page_size = SelectorConfig().page_size
    if config.workload.kind is WorkloadKind.random_ids:
        config.workload.files = []
    if config.workload.kind is not WorkloadKind.selections:
        config.workload.miss_rate = None
    if config.model.weights != "random":
        config.model.seed, config.model.embed_common = ModelConfig().seed, ModelConfig().embed_common
