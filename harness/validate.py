"""What a composed config must satisfy before anything starts, and the values it leaves to be derived."""

from __future__ import annotations

from harness.schema import Config, Family, ModelConfig, OffloadSystem, SelectorKind, WorkloadKind
from harness.units import parse_bytes


class ConfigError(ValueError):
    """A config that cannot run. The message is one line: the key, what is wrong, what would be right."""


SELECTORS = {
    Family.mla: (SelectorKind.dense, SelectorKind.dsa),
    Family.gqa: (SelectorKind.dense, SelectorKind.quest),
}


def top_k(config: Config) -> int:
    """k of a completed config: positions a layer may attend to (the whole context for `dense`)."""
    k = config.selector.top_k
    return config.context_len if k is None else k


def complete(config: Config) -> Config:
    """Fill derived values in place, check the rest, and return the config. Raises ConfigError."""
    _check_positive(config)
    _check_model(config.model)
    _complete_lengths(config)
    _complete_selector(config)
    _complete_offload(config)
    _complete_sizes(config)
    _check_workload(config)
    _check_load(config)
    return config


def _check_positive(config: Config) -> None:
    at_least_one = {
        "engine.page_size": config.engine.page_size,
        "engine.max_running_requests": config.engine.max_running_requests,
        "engine.prefill_chunk_tokens": config.engine.prefill_chunk_tokens,
        "selector.page_size": config.selector.page_size,
        "workload.input_len": config.workload.input_len,
        "workload.output_len": config.workload.output_len,
        "load.repeats": config.load.repeats,
    }
    for key, value in at_least_one.items():
        if value < 1:
            raise ConfigError(f"{key}={value} must be at least 1")
    at_least_zero: dict[str, float] = {
        "load.warmup_requests": config.load.warmup_requests,
        "load.stagger_s": config.load.stagger_s,
        "workload.temperature": config.workload.temperature,
        "workload.seed": config.workload.seed,
        "model.seed": config.model.seed,
    }
    for key, number in at_least_zero.items():
        if number < 0:
            raise ConfigError(f"{key}={number} must not be negative")
    above_zero: dict[str, float] = {
        "platform.num_cpus": config.platform.num_cpus,
        "cluster.loadgen_cpus": config.cluster.loadgen_cpus,
        "engine.start_timeout_s": config.engine.start_timeout_s,
        "load.connect_timeout_s": config.load.connect_timeout_s,
        "load.first_token_timeout_s": config.load.first_token_timeout_s,
        "load.idle_timeout_s": config.load.idle_timeout_s,
        "load.total_timeout_s": config.load.total_timeout_s,
    }
    for key, number in above_zero.items():
        if number <= 0:
            raise ConfigError(f"{key}={number} must be above 0")


def _check_model(model: ModelConfig) -> None:
    needs = {
        Family.mla: ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        Family.gqa: ("num_kv_heads", "head_dim"),
    }[model.family]
    for key in needs:
        if getattr(model, key) is None:
            raise ConfigError(f"model.{key} must be set for model.family={model.family.value}")
    if model.family is Family.gqa and model.num_heads % (model.num_kv_heads or 1):
        raise ConfigError(
            f"model.num_heads={model.num_heads} must be a multiple of model.num_kv_heads={model.num_kv_heads}"
        )


def _complete_lengths(config: Config) -> None:
    longest = config.model.max_positions
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
    if work.input_len + work.output_len > config.context_len:
        raise ConfigError(
            f"workload.input_len={work.input_len} + workload.output_len={work.output_len} is longer than "
            f"engine.context_len={config.context_len}"
        )
    if work.kind is WorkloadKind.text_files and config.model.weights == "random":
        raise ConfigError(
            f"workload=text_files needs a tokenizer, which model={config.model.name} has not; "
            "choose workload=random_ids"
        )


def _check_load(config: Config) -> None:
    load = config.load
    if not load.concurrencies or any(c < 1 for c in load.concurrencies):
        raise ConfigError(f"load.concurrencies={load.concurrencies} must list values of at least 1")
    if len(set(load.concurrencies)) < len(load.concurrencies):
        raise ConfigError(f"load.concurrencies={load.concurrencies} names a value twice")
    if (load.num_requests is None) == (load.requests_per_worker is None):
        raise ConfigError(
            "set exactly one of load.num_requests (N) and load.requests_per_worker (N / concurrency), the other to null"
        )
    if load.requests_per_worker is not None and load.requests_per_worker < 1:
        raise ConfigError(f"load.requests_per_worker={load.requests_per_worker} must be at least 1")
    if load.num_requests is not None and load.num_requests < max(load.concurrencies):
        raise ConfigError(
            f"load.num_requests={load.num_requests} is below load.concurrencies={max(load.concurrencies)}, "
            "which it could never reach"
        )
