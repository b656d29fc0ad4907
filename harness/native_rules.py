"""What a cell of the native engine costs on a calibrated machine: which entry is its own, and what that must hold.

Part of `harness.validate`."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields

from harness.schema import Config, EngineConfig, NativeCosts, Prefetch, Scalar, ServingCosts, to_plain

_STEP = ("step_s", "request_s", "position_s", "chunk_s", "token_s", "prefix_s", "pair_s", "prompt_s")
_FETCH = ("fetch_s", "record_s")
_SERVING = ("request_s", "prompt_token_s", "entry_s", "step_s", "token_s", "wake_s")


def cost_key(config: Config) -> str:
    """What tells kinds of cells apart whose steps cost differently: model, selector, offload system, B, prefetch, and
    by a hash whatever else of them the config says (a completed config). Budgets, loads and links are no part of it."""
    offload, selector = config.offload, config.selector
    parts = [config.model.name, selector.kind.value]
    if selector.top_k is not None:
        parts.append(f"k{selector.top_k}")
    parts.append(offload.system.value)
    if offload.system.keeps_slots:
        parts.append(f"B{offload.cache_slots}")
        if offload.prefetch is not Prefetch.none:
            assert offload.prefetch is not None
            parts.append(offload.prefetch.value)
    plain = to_plain(config)
    rest = [plain["model"], plain["selector"], plain["offload"], config.engine.batch_invariant, threads(config)]
    return "-".join([*parts, hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:6]])


def threads(config: Config) -> int:
    """Threads the engine computes with."""
    return max(1, int(config.platform.num_cpus))


def complete_native(config: Config) -> str | None:
    """Keep the cell's own costs alone; the first thing that they lack or that is wrong with them, else None."""
    platform, key = config.platform, cost_key(config)
    if config.engine.data_parallel not in (None, 1) or platform.num_devices != 1:
        return "a calibrated machine is one device: leave engine.data_parallel and platform.num_devices at 1"
    if config.engine.host_to_device_ratio is not None or config.engine.staging is not EngineConfig().staging:
        return "the native engine has neither engine.host_to_device_ratio nor engine.staging: leave them out"
    costs = platform.native.get(key)
    if costs is None:
        known = ", ".join(sorted(platform.native))
        return (
            f"platform={platform.name} was not calibrated for {key}, it has {known}: run python -m harness.calibrate "
            f"{config.name}"
        )
    platform.native = {key: costs}
    needed = [*_STEP, *(_FETCH if config.offload.system.fetches else ())]
    own = _first_problem(costs, needed, f"platform.native.{key}")
    return own or _first_problem(platform.serving, _SERVING, "platform.serving") or _miss_problem(config, costs, key)


def _first_problem(costs: NativeCosts | ServingCosts, needed: list[str] | tuple[str, ...], where: str) -> str | None:
    for f in fields(costs):
        scalar = getattr(costs, f.name)
        if not isinstance(scalar, Scalar):
            continue
        if scalar.value is None and f.name in needed:
            return f"{where}.{f.name}.value is missing from the platform's file: run python -m harness.calibrate again"
        if scalar.value is not None and not (math.isfinite(scalar.value) and scalar.value >= 0):
            return f"{where}.{f.name}.value={scalar.value} must be a finite number and not negative"
        if scalar.value is not None and not scalar.source:
            return f"{where}.{f.name}.source must say what measured the value {scalar.value:g}"
    return None


def _miss_problem(config: Config, costs: NativeCosts, key: str) -> str | None:
    where = f"platform.native.{key}.miss_rates"
    if not config.offload.system.keeps_slots:
        return None
    if not costs.miss_rates:
        return f"{where} is missing from the platform's file: run python -m harness.calibrate again"
    for entry in costs.miss_rates:
        if len(entry) != 3 or min(entry[:2]) <= 0 or not 0 <= entry[2] <= 1:
            return f"{where} has {list(entry)}: write [B/k, context/k, share of the selection that misses]"
    return None
