"""Stored requests measured again: `python -m analysis recompute results/NAME`.

The measures come from each point's requests.parquet by today's definitions (`harness.loadgen.metrics`), under other
SLOs where asked. The rows on disk stay as they are; what differs from them is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import labels
from analysis.tables import Table
from harness import store
from harness.loadgen.metrics import Measures, Rules, measure
from harness.records import RequestRecord

_SAME = 1e-6  # relative: JSON and parquet keep every digit, sums may be ordered otherwise


@dataclass(frozen=True, slots=True)
class Recomputed:
    """`rows`: one line a point that has requests, `records.TIMESTAMP_MEASURES` beside who it is."""

    rows: pd.DataFrame
    differences: list[str]  # stored measures that today's definitions do not give
    file: Path

    def table(self) -> Table:
        """The main figures with the interval of the mean TTFT, and the goodput."""
        headers = [("cell", ""), ("C", ""), ("repeat", ""), ("output", "tok/s"), ("TTFT", "ms"), ("95%", "interval")]
        headers += [("steady", "tok/s"), ("good", "put")]
        rows = []
        for row in self.rows.to_dict("records"):
            low, high = row["mean_ttft_ms_ci_low"], row["mean_ttft_ms_ci_high"]
            interval = labels.MISSING if pd.isna(low) else f"{labels.number(low)}–{labels.number(high)}"
            shown = [row["output_throughput"], row["mean_ttft_ms"]]
            rows.append(
                [row["cell_id"], str(row["concurrency"]), str(row["repeat"])]
                + [labels.MISSING if pd.isna(value) else labels.number(value) for value in shown]
                + [interval]
                + [
                    labels.MISSING if pd.isna(row[name]) else show(row[name])
                    for name, show in (("steady_output_throughput", labels.number), ("goodput", labels.percent))
                ]
            )
        return Table(headers, rows)


def recompute(experiment_dir: Path | str, slo: dict[str, float], out: Path | None = None) -> Recomputed:
    """Measure every stored point again and write `recomputed.csv` into `out` (default: the folder's figures).

    slo: fields of `Rules` (`slo_ttft_ms`, ...) that replace those the points ran with. Raises ValueError for a folder
    without points or with a corrupt one.
    """
    stored = store.read_rows(experiment_dir)
    if stored.empty:
        raise ValueError(f"{experiment_dir}: holds no points; name the folder of one experiment")
    found, differences = [], []
    for row in stored.to_dict("records"):
        requests = read_requests(Path(row["point_path"]))
        if not requests:
            continue
        rules = rules_of(store.read_config(row["point_path"]), int(row["concurrency"]))
        measures = measure(requests, replace(rules, **slo))
        who = f"{row['cell_id']} at {row['concurrency']}, repeat {row['repeat']}"
        differences += _differences(who, row, measure(requests, rules) if slo else measures)
        identity = {name: row[name] for name in ("cell_id", "offload", "concurrency", "repeat", "status")}
        found.append(identity | measures)
    out = out or Path(experiment_dir) / "figures"
    out.mkdir(parents=True, exist_ok=True)
    file = out / "recomputed.csv"
    rows = pd.DataFrame(found)
    rows.to_csv(file, index=False)
    return Recomputed(rows, differences, file)


def read_requests(point: Path) -> list[RequestRecord]:
    """A point's requests as the metric function takes them."""
    table = store.read_requests(point)
    names = [f.name for f in fields(RequestRecord) if f.name in table.columns]
    return [RequestRecord(**{n: _plain(v) for n, v in record.items()}) for record in table[names].to_dict("records")]


def rules_of(config: dict[str, Any], concurrency: int) -> Rules:
    """What a point was measured by, from its config; keys that an older config lacks take their defaults."""
    load, platform = config.get("load") or {}, config.get("platform") or {}
    own = {f.name: load[f.name] for f in fields(Rules) if load.get(f.name) is not None}
    closed = load.get("mode", "closed") == "closed"
    return Rules(concurrency=concurrency if closed else None, devices=platform.get("num_devices", 1), **own)


def _differences(who: str, row: dict[str, Any], measures: Measures) -> Sequence[str]:
    """Stored values that are not what the function gives; what the row does not have is no difference."""
    found = []
    for name, value in measures.items():
        before = row[name]
        if pd.isna(before) or value is None:
            continue
        if not math.isclose(float(before), value, rel_tol=_SAME, abs_tol=1e-9):
            found.append(f"{who}: {name} is {float(before):g} in its row, {value:g} from its requests")
    return found


def _plain(value: Any) -> Any:
    """A parquet cell as the record's field: lists of numbers, None for what is missing."""
    if hasattr(value, "tolist") and getattr(value, "ndim", 0):
        return value.tolist()
    return None if value is pd.NA or value is None or (isinstance(value, float) and math.isnan(value)) else value
