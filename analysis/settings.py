"""Under which settings a group ran: its budget in a sentence, its main keys as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis import labels
from analysis.frame import Experiment, Group, flatten

_BYTES = ("engine.device_kv_budget", "engine.host_kv_budget")
_SHOWN = ("model.name", "platform.name", "selector.", "offload.cache_slots", "engine.", "workload.")
_LOAD = (
    *("load.mode", "load.num_requests", "load.requests_per_worker", "load.max_seconds", "load.warmup_requests"),
    *("load.stagger_s", "load.arrivals"),  # not the pace: the points of a line differ in it
    *("load.slo_ttft_ms", "load.slo_tpot_ms", "load.slo_e2el_ms"),
)
_LOCAL = ("engine.host", "engine.port", "engine.start_timeout_s")  # of the machine, not of the experiment
_BUDGET = (
    ("engine.device_kv_budget", "device KV budget {}"),
    ("engine.host_kv_budget", "host pool {}"),
    ("engine.context_len", "context length {} tokens"),
    ("engine.prefill_chunk_tokens", "prefill chunk {} tokens"),
)


def budget(experiment: Experiment, group: Group) -> list[str]:
    """What the systems had to share, and how many requests of each ran at once at most, as two lines."""
    values = _by_cell(experiment, group)
    parts = [
        pattern.format(_shown(group, values[key], _roughly if key in _BYTES else words))
        for key, pattern in _BUDGET
        if key in values
    ]
    running = []
    for i, series in enumerate(group.series):
        peaks = group.line(i, "peak_running")["peak_running_max"]
        if len(peaks):
            running.append(f"{series.short} {labels.count(peaks.max())}")
    found = ["; ".join(parts)] if parts else []
    return found + ([f"ran at once at most: {'; '.join(running)}"] if running else [])


def configuration(experiment: Experiment, group: Group) -> list[tuple[str, str]]:
    """(dotted key, value) of the keys that shape the result; a value that differs is given for each series."""
    return [
        (key, _shown(group, values, _exactly if key in _BYTES else words))
        for key, values in _by_cell(experiment, group).items()
        if key not in _LOCAL and (key in _LOAD or key.startswith(_SHOWN)) and any(v not in (None, []) for v in values)
    ]


def words(value: Any) -> str:
    """A config or environment value as it is shown; a dash for nothing."""
    if isinstance(value, list):
        return ", ".join(map(words, value)) or labels.MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return labels.MISSING if value is None or value == "" else str(value)


def _by_cell(experiment: Experiment, group: Group) -> dict[str, list[Any]]:
    """Dotted key -> its value in each series' config (None where a config lacks it)."""
    configs = [dict(flatten(experiment.configs[series.cell_id])) for series in group.series]
    return {key: [config.get(key) for config in configs] for config in configs for key in config}


def _shown(group: Group, values: list[Any], show: Callable[[Any], str]) -> str:
    """One value where all series agree, else each with the series it belongs to."""
    by_value: dict[str, list[str]] = {}
    for series, value in zip(group.series, values, strict=True):
        by_value.setdefault(show(value), []).append(series.short)
    if len(by_value) == 1:
        return next(iter(by_value))
    return " | ".join(f"{text} ({'; '.join(names)})" for text, names in by_value.items())


def _roughly(value: Any) -> str:
    return labels.size(value) if isinstance(value, int) else words(value)


def _exactly(value: Any) -> str:
    return f"{labels.size(value)} ({value:,} bytes)" if isinstance(value, int) else words(value)
