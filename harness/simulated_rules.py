"""What engine=simulated derives from a platform, and what the platform's file must have for it: part of
`harness.validate`."""

from __future__ import annotations

from dataclasses import fields

from harness.model_sizes import device_weights
from harness.native_rules import complete_native
from harness.schema import Config, EngineConfig, EngineKind, Family, ServingCosts
from harness.units import show_bytes

AUTO = "auto"  # a budget that the platform implies
_OWN_KEYS = ("memory_fraction", "host_fraction", "data_parallel", "host_to_device_ratio", "staging")
_NEEDED = ("memory_bandwidth", "flops", "costs.layer_s", "costs.attention_efficiency", "costs.prefill_efficiency")
_NEEDED_TO_FETCH = ("costs.worker_rate",)


def complete_simulated(config: Config) -> str | None:
    """Fill ranks and budgets in place; the first thing that is wrong, else None. Other engines: their keys alone."""
    engine, default = config.engine, EngineConfig()
    if engine.kind is not EngineKind.simulated:
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
    devices = config.platform.num_devices
    if engine.data_parallel is None:
        engine.data_parallel = devices
    if devices % engine.data_parallel:
        return f"engine.data_parallel={engine.data_parallel} must divide platform.num_devices={devices}"
    problem = _unsourced(config) or (complete_native(config) if config.platform.native else _missing(config))
    return problem or _device_budget(config) or _host_budget(config)


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


def _lacks(name: str, key: str) -> str:
    return (
        f"platform={name} has no {key}, which engine=simulated needs: set it with its source, or choose a platform "
        "that has it (h200x8, b200x2, gh200, h100x8, a100x8); for a machine of your own: python -m harness.calibrate"
    )


def _device_budget(config: Config) -> str | None:
    """`auto`: what one rank has for KV beside the weights. Its devices hold parts of GQA's records, and copies of the
    others', which have no heads to be split by."""
    engine, platform = config.engine, config.platform
    if engine.device_kv_budget != AUTO:
        return None
    if platform.device_memory is None:
        return _lacks(platform.name, "platform.device_memory")
    usable, weights = int(platform.device_memory) * engine.memory_fraction, device_weights(config)
    if usable <= weights:
        return (
            f"model={config.model.name} needs {show_bytes(weights)} of weights on each of {platform.num_devices} "
            f"devices, platform={platform.name} has {show_bytes(usable)} (engine.memory_fraction="
            f"{engine.memory_fraction:g}): choose a platform with more"
        )
    copies = 1 if config.model.family is not Family.gqa else platform.num_devices // (engine.data_parallel or 1)
    engine.device_kv_budget = int((usable - weights) * copies)
    return None


def _host_budget(config: Config) -> str | None:
    """`auto`: a rank's share of the node's memory."""
    engine, platform = config.engine, config.platform
    if engine.host_kv_budget != AUTO:
        return None
    if platform.host_memory is None:
        return _lacks(platform.name, "platform.host_memory")
    engine.host_kv_budget = int(int(platform.host_memory) * engine.host_fraction / (engine.data_parallel or 1))
    return None
