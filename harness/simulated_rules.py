"""What engine=simulated derives from a platform, and what the platform's file must have for it: part of
`harness.validate`. Memory is planned likewise for engine=sglang, which needs no costs."""

from __future__ import annotations

import copy
from dataclasses import fields

from harness.model_sizes import device_weights
from harness.native_rules import complete_native
from harness.schema import Config, EngineConfig, EngineKind, Family, ServingCosts
from harness.units import show_bytes

AUTO = "auto"  # a budget that the platform implies
_OWN_KEYS = ("memory_fraction", "host_fraction", "data_parallel", "host_to_device_ratio", "staging")
_FITTED = ("costs.layer_s", "costs.attention_efficiency", "costs.prefill_efficiency")
_NEEDED = ("memory_bandwidth", "flops", "multiprocessors", *_FITTED)
_NEEDED_TO_FETCH = ("costs.worker_rate",)


def complete_simulated(config: Config) -> str | None:
    """Fill ranks and budgets in place; the first thing that is wrong, else None. Other engines: their keys alone."""
    engine, default = config.engine, EngineConfig()
    if not engine.kind.models_memory:
        for key in _OWN_KEYS:
            setattr(engine, key, getattr(default, key))
        config.model.weight_bytes = config.model.expert_weight_bytes = None
        config.platform.native, config.platform.serving = {}, ServingCosts()
        return _unsourced(config)
    for key in ("memory_fraction", "host_fraction"):
        if getattr(engine, key) > 1:
            return f"engine.{key}={getattr(engine, key)} is a share: choose above 0 and at most 1"
    if not config.offload.system.offloads:
        engine.host_to_device_ratio, engine.staging = default.host_to_device_ratio, default.staging
    if engine.kind is EngineKind.sglang:
        return _unsourced(config) or _device_budget(config) or _host_budget(config)
    devices = config.platform.num_devices
    if engine.data_parallel is None:
        engine.data_parallel = devices
    if devices % engine.data_parallel:
        return f"engine.data_parallel={engine.data_parallel} must divide platform.num_devices={devices}"
    problem = _unsourced(config) or (complete_native(config) if config.platform.native else _missing(config))
    return problem or _device_budget(config) or _host_budget(config)


def simulated_twin(config: Config) -> Config | str:
    """The cell of a completed engine=sglang as engine=simulated would run it, or why it cannot."""
    if config.devices != config.platform.num_devices:
        return (
            f"platform={config.platform.name} has costs of {config.platform.num_devices} devices, not {config.devices}"
        )
    twin = copy.deepcopy(config)
    twin.engine.kind = EngineKind.simulated
    return _missing(twin) or twin


def _unsourced(config: Config) -> str | None:
    for f in fields(config.platform.costs):
        scalar = getattr(config.platform.costs, f.name)
        if scalar.value is not None and not scalar.source:
            return f"platform.costs.{f.name}.source must say what fixed the value {scalar.value:g}"
    return None


def _missing(config: Config) -> str | None:
    """The first number that this cell's costs need and its platform lacks."""
    platform = config.platform
    needed = [*_NEEDED, *(_NEEDED_TO_FETCH if config.offload.system.fetches else ())]
    if config.offload.system.fetches and platform.costs.link_rate.value is None:
        needed.append("host_link")
    for key in needed:
        group, _, name = key.rpartition(".")
        value = getattr(platform.costs, name).value if group else getattr(platform, name)
        if value is None:
            return _lacks(platform.name, f"platform.{key}{'.value' if group else ''}")
    return None


def _lacks(name: str, key: str, instead: str = "") -> str:
    return (
        f"platform={name} has no {key}, which engine=simulated and budgets of `auto` need: set it with its source,"
        f"{instead} or choose a platform that has it (h200x8, b200x2, gh200, h100x8, a100x8); for a machine of your "
        "own: python -m harness.calibrate"
    )


def _device_budget(config: Config) -> str | None:
    """`auto`: what the platform implies."""
    if config.engine.device_kv_budget == AUTO:
        implied = implied_device_budget(config)
        if isinstance(implied, str):
            return implied
        config.engine.device_kv_budget = implied
    return None


def implied_device_budget(config: Config) -> int | str:
    """What one rank has for KV beside the weights, or why that is not known. Its devices hold parts of GQA's records,
    and copies of the others', which have no heads to be split by."""
    engine, platform = config.engine, config.platform
    if platform.device_memory is None:
        return _lacks(platform.name, "platform.device_memory", " give engine.device_kv_budget in bytes,")
    usable, weights = int(platform.device_memory) * engine.memory_fraction, device_weights(config)
    if usable <= weights:
        return (
            f"model={config.model.name} needs {show_bytes(weights)} of weights on each of {config.devices} "
            f"devices, platform={platform.name} has {show_bytes(usable)} (engine.memory_fraction="
            f"{engine.memory_fraction:g}): choose a platform with more"
        )
    copies = engine.pipeline_parallel  # each of whose stages has the records of its own layers
    if config.model.family is Family.gqa:
        copies = config.devices // (engine.data_parallel or 1)
    return int((usable - weights) * copies)


def _host_budget(config: Config) -> str | None:
    """`auto`: a rank's share of the node's memory."""
    engine, platform = config.engine, config.platform
    if engine.host_kv_budget != AUTO:
        return None
    if platform.host_memory is None:
        return _lacks(platform.name, "platform.host_memory", " give engine.host_kv_budget in bytes,")
    memory = int(platform.host_memory) * config.num_nodes
    engine.host_kv_budget = int(memory * engine.host_fraction / (engine.data_parallel or 1))
    return None
