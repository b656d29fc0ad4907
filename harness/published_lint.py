"""Which published rows cannot hold together, by laws that need no model of a machine: python -m harness.published_lint

Little's law (with N = C, a mean end-to-end time is at most the point's duration), peak operations a second, weights
that every step must read, device memory, both of these together, less work that is not slower, the prefill that two
rates leave, host memory, and differences that two figures state twice. Each finding says what was compared. Platforms
and models come from `conf/`, the rows from `analysis/published.csv`.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from analysis import published
from analysis.comparison import MODELS, PLATFORMS
from harness.config import load_cells
from harness.model_sizes import device_weights, model_size
from harness.schema import Config
from harness.simulation.costs import RankChunks, StepCosts
from harness.simulation.pools import record_bytes_per_token, state_bytes_per_token
from harness.simulation.work import work_of

_EXPERIMENTS = ("fig1", "fig4", "fig5", "fig8")
_TOLERANCE = 1.25  # between two statements of one difference


@dataclass(frozen=True, slots=True)
class Finding:
    """One law, applied."""

    law: str
    who: str  # figure, system, metric and concurrency
    holds: bool
    detail: str


def lint() -> list[Finding]:
    """Every law applied to every row that it fits."""
    table = published.table()
    table = table[(table["paper"] == "hisparse") & table["platform"].isin(PLATFORMS)]
    configs = _configs()
    found: list[Finding] = []
    for law in _LAWS:
        found += list(law(table, configs))
    return found


def _configs() -> dict[tuple[str, str], Config]:
    """(platform, model) -> a cell that runs it, full KV."""
    cells = [cell for name in _EXPERIMENTS for cell in load_cells([f"experiment={name}", "offload=full_kv"])]
    return {(cell.platform.name, cell.model.name): cell for cell in cells}


def _of(row: pd.Series, configs: dict[tuple[str, str], Config]) -> Config:
    return configs[PLATFORMS[row["platform"]], MODELS[row["model"]]]


def _who(row: pd.Series) -> str:
    at = f"peak over {row['input_len']}" if row["concurrency"] == "peak" else row["concurrency"]
    return f"{row['figure']} {row['model']} {row['system']} {row['metric']} at {at}"


def _value(table: pd.DataFrame, **keys: str) -> float | None:
    for key, value in keys.items():
        table = table[table[key] == value]
    return float(table["value"].iloc[0]) if len(table) == 1 else None


def _rows(table: pd.DataFrame, *metrics: str) -> Iterator[pd.Series]:
    for _, row in table[table["metric"].isin(metrics)].iterrows():
        yield row


def _little(table: pd.DataFrame, configs: dict[tuple[str, str], Config]) -> Iterator[Finding]:
    """A mean TTFT and the quickest published decode after it end within N x output / throughput."""
    for row in _rows(table, "throughput"):
        if not row["concurrency"].isdigit():
            continue
        same = {key: row[key] for key in ("figure", "platform", "model", "system", "concurrency")}
        ttft = _value(table, **same, metric="mean_ttft")
        tpots = [float(r["value"]) / 1e3 for r in _rows(table[table["figure"] == row["figure"]], "mean_tpot")]
        if ttft is None or not tpots:
            continue
        output = int(row["output_len"])
        duration, least = int(row["concurrency"]) * output / float(row["value"]), ttft + min(tpots) * (output - 1)
        detail = f"mean TTFT {ttft:g} s and {output} tokens at {min(tpots) * 1e3:g} ms are {least:.0f} s, "
        yield Finding("Little", _who(row), least <= duration, detail + f"the throughput leaves {duration:.0f} s")


def _operations(table: pd.DataFrame, configs: dict[tuple[str, str], Config]) -> Iterator[Finding]:
    """Each request's prompt, attention included, and its output's weights within the devices' peak."""
    for row in _rows(table, "throughput"):
        config = _of(row, configs)
        output = int(row["output_len"] or config.workload.output_len)
        requests_s = float(row["value"]) / output
        decode = output * 2 * model_size(config.model).active / (_peak(config) * config.platform.num_devices)
        share = requests_s * (_prefill_at_peak(config, int(row["input_len"])) + decode)
        detail = f"{share:.1%} of the peak with {output} tokens out"
        yield Finding("operations", _who(row), share <= 1, detail)


def _peak(config: Config) -> float:
    small = (config.model.weight_bytes or 2) <= 1 and config.platform.flops_fp8
    return (config.platform.flops_fp8 if small else config.platform.flops) or 0.0


def _prefill_at_peak(config: Config, length: int) -> float:
    """Seconds of the whole node for one prompt of this length, every part at its peak."""
    changed, ranks = copy.deepcopy(config), config.engine.data_parallel or 1
    changed.platform.costs.prefill_efficiency.value = 1.0
    return StepCosts(changed).prefill([RankChunks(((0, length, True),))] * ranks) / ranks


def _weights(table: pd.DataFrame, configs: dict[tuple[str, str], Config]) -> Iterator[Finding]:
    """A step of C requests reads the experts that they use, whatever else it does."""
    for row in _rows(table, "decode_only_throughput", "mean_tpot"):
        if not row["concurrency"].isdigit():
            continue
        config, c = _of(row, configs), int(row["concurrency"])
        work, size = work_of(config), model_size(config.model)
        read = work.rank_weight_bytes + work.expert_weight_bytes * size.coverage(c)
        least = read / float(config.platform.memory_bandwidth or 1)
        step = c / float(row["value"]) if row["metric"] == "decode_only_throughput" else float(row["value"]) / 1e3
        detail = f"a step of {step * 1e3:.1f} ms, of which reading weights is {least * 1e3:.1f}"
        yield Finding("weights", _who(row), least <= step, detail)


def _memory(table: pd.DataFrame, configs: dict[tuple[str, str], Config]) -> Iterator[Finding]:
    """Requests said to run at once with full KV, beside the weights, in all of the devices' memory."""
    for row in _rows(table, "concurrent_requests"):
        config = _of(row, configs)
        length = int(row["input_len"]) + int(row["output_len"] or 0)
        each = length * (record_bytes_per_token(config) + state_bytes_per_token(config))
        kv = float(row["value"]) * each
        room = config.platform.num_devices * (int(config.platform.device_memory or 0) - device_weights(config))
        used = f"{row['value']} requests hold {kv / 1e9:.0f} GB"
        yield Finding("device memory", _who(row), kv <= room, f"{used}, beside the weights lie {room / 1e9:.0f} GB")
        rate = _value(table, figure=row["figure"], metric="decode_only_throughput", system=row["system"])
        steps = [float(r["value"]) for r in _rows(table[table["system"] == row["system"]], "mean_tpot")]
        if rate is not None and steps:
            step = float(row["value"]) / rate * 1e3
            detail = f"{row['value']} at once at {rate:g} tok/s are {step:.0f} ms a step; published steps end at "
            yield Finding("step time", _who(row), step <= 2 * max(steps), detail + f"{max(steps):g} ms")


def _held(table: pd.DataFrame, configs: dict[tuple[str, str], Config]) -> Iterator[Finding]:
    """Full KV: what fits whole beside the weights, and what reading the weights that it uses then leaves."""
    for row in _rows(table[table["system"] == "full_kv"], "throughput"):
        config = _of(row, configs)
        output, devices = int(row["output_len"] or config.workload.output_len), config.platform.num_devices
        length = int(row["input_len"]) + output
        room = devices * (int(config.platform.device_memory or 0) - device_weights(config))
        most = int(room / (length * (record_bytes_per_token(config) + state_bytes_per_token(config))))
        work, size = work_of(config), model_size(config.model)
        read = work.rank_weight_bytes + work.expert_weight_bytes * size.coverage(most)
        limit = most / read * float(config.platform.memory_bandwidth or 1)
        detail = f"{most} whole requests with {output} tokens out fit in all of the memory; the weights that they read "
        yield Finding("weights and memory", _who(row), float(row["value"]) <= limit, f"{detail}allow {limit:.0f} tok/s")


def _less_work(table: pd.DataFrame, configs: dict[tuple[str, str], Config]) -> Iterator[Finding]:
    """A model that computes and reads no less in any part than another is no quicker with the same system."""
    rates = table[(table["metric"] == "throughput") & (table["input_len"] == "32768")]
    for row, other in itertools.permutations(rates.to_dict("records"), 2):
        alike = row["platform"] == other["platform"] and _system(row) == _system(other)
        if not alike or row["model"] == other["model"]:
            continue
        more, less = (asdict(work_of(configs[PLATFORMS[r["platform"]], MODELS[r["model"]]])) for r in (row, other))
        if any(more[key] < less[key] for key in more if key != "anchors") or more["anchors"] < less["anchors"]:
            continue
        there = f"gives {other['value']} in {other['figure']}"
        detail = f"{row['value']} tok/s; {other['model']}, which works less, {there}"
        holds = float(row["value"]) <= _TOLERANCE * float(other["value"])
        yield Finding("less work", _who(pd.Series(row)), holds, detail)


def _system(row: dict[Any, Any]) -> str:
    return "hisparse_sync" if row["system"] == "hisparse" else row["system"]


def _prefill_left(table: pd.DataFrame, configs: dict[tuple[str, str], Config]) -> Iterator[Finding]:
    """Throughput and decode-only rate of a run leave seconds of prefill a request: the same for the same prompts."""
    left: dict[tuple[str, str], list[tuple[float, pd.Series]]] = {}
    for row in _rows(table[table["concurrency"] != "saturation"], "decode_only_throughput"):
        same = {key: row[key] for key in ("figure", "platform", "model", "system", "concurrency")}
        rate = _value(table, **same, metric="throughput")
        if rate is not None:
            seconds = int(row["output_len"]) * (1 / rate - 1 / float(row["value"]))
            left.setdefault((row["figure"], row["model"]), []).append((seconds, row))
    for found in left.values():
        least = min(seconds for seconds, _ in found)
        for seconds, row in found:
            detail = f"{seconds:.2f} s of prefill a request, another system's rows leave {least:.2f} for the same"
            yield Finding("prefill left", _who(row), seconds <= _TOLERANCE * least, detail)


def _host(table: pd.DataFrame, configs: dict[tuple[str, str], Config]) -> Iterator[Finding]:
    """Every request's records in the host's memory."""
    for row in _rows(table, "throughput"):
        if not row["concurrency"].isdigit() or row["system"] == "full_kv":
            continue
        config = _of(row, configs)
        length = int(row["input_len"]) + int(row["output_len"])
        held = int(row["concurrency"]) * length * record_bytes_per_token(config)
        room = float(config.platform.host_memory or 0)
        yield Finding("host memory", _who(row), held <= room, f"{held / 1e9:.0f} GB of {room / 1e9:.0f}")


def _differences(table: pd.DataFrame, configs: dict[tuple[str, str], Config]) -> Iterator[Finding]:
    """Exposed IO, stated once by itself and once as a difference of decode-only rates."""
    for row in _rows(table, "exposed_io_per_token"):
        same = {"figure": row["figure"], "concurrency": row["concurrency"], "metric": "decode_only_throughput"}
        rates = [_value(table, **same, system=system) for system in (row["system"], "no_io_oracle")]
        if rates[0] is None or rates[1] is None:
            continue
        said, implied = float(row["value"]), int(row["concurrency"]) * 1e3 * (1 / rates[0] - 1 / rates[1])
        detail = f"{said:g} ms, but the decode-only rates differ by {implied:.1f} ms a step"
        yield Finding("stated twice", _who(row), implied <= _TOLERANCE * said, detail)


_LAWS = (_little, _operations, _weights, _memory, _held, _less_work, _prefill_left, _host, _differences)


def main() -> int:
    """Prints every finding; 0 always, since what does not hold is the papers'."""
    findings = lint()
    for finding in sorted(findings, key=lambda f: (f.holds, f.law)):
        print(f"{'ok  ' if finding.holds else 'NOT '} {finding.law}: {finding.who}: {finding.detail}")
    broken = sum(not finding.holds for finding in findings)
    print(f"{len(findings)} checks, {broken} that do not hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
