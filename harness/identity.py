"""What makes a cell: the keys of the config that say what is measured, and the id made from them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from harness.schema import Config, EngineKind, to_plain

# What a cell is not: how it is reported and judged, where it runs, how long one waits for it. Its points are told apart
# by concurrency and repeat; everything else in the config is what was measured, and changing it is another cell.
NOT_IDENTITY: dict[str, tuple[str, ...]] = {
    "": ("name", "description", "results_dir", "dry_run", "retry_failed", "break_lock", "grid", "cluster", "tracker"),
    "engine": ("host", "port", "start_timeout_s"),
    "load": (
        "concurrencies",
        "repeats",
        "connect_timeout_s",
        "first_token_timeout_s",
        "idle_timeout_s",
        "total_timeout_s",
        "processes",
        "max_lag_p99_ms",
        "max_lag_share",
        "max_cpu_share",
        "min_completed",
        "max_failed_share",
        "max_token_mismatch",
        "late_after_ms",
        "slo_ttft_ms",
        "slo_tpot_ms",
        "slo_e2el_ms",
    ),
}


def defines_cell(key: str) -> bool:
    """Whether cells that differ in this key (dotted) or group are different cells."""
    top, _, rest = key.partition(".")
    return top not in (*NOT_IDENTITY[""], "experiment") and rest not in NOT_IDENTITY.get(top, ())


def defining(config: Config) -> dict[str, Any]:
    """What of a completed config defines the cell, as nested plain values."""
    plain = to_plain(config)
    for group, keys in NOT_IDENTITY.items():
        for key in keys:
            del (plain[group] if group else plain)[key]
    return plain


def cell_id(config: Config) -> str:
    """Readable name plus a hash of everything that defines the cell (a completed config)."""
    digest = hashlib.sha256(json.dumps(defining(config), sort_keys=True).encode()).hexdigest()[:8]
    parts = [config.offload.system.value, config.model.name, config.selector.kind.value]
    if config.selector.top_k is not None:
        parts.append(f"k{config.selector.top_k}")
    if config.offload.system.offloads:
        parts.append(f"B{config.offload.cache_slots}")
    if config.engine.kind is EngineKind.replay:
        parts[0] = config.replay.policy
    return "-".join([*parts, digest])
