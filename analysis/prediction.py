"""Measured points beside simulated ones of the same cells: how far a prediction is from what was measured.

A pair is one offload system at one concurrency: the measured rows' median over the repeats, and the simulated row. The
error is |simulated - measured| / measured. Beside it stands how far the repeats themselves lie from their median: a
prediction cannot be nearer to one run than runs are to one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels
from analysis.table import Table
from harness import store
from harness.records import Status

SIMULATED = "simulated"
MEASURES = {"output_throughput": "tok/s", "mean_ttft_ms": "TTFT ms", "mean_tpot_ms": "TPOT ms"}
_GROUP = ("model", "selector", "top_k", "link", "workload", "input_len", "output_len")
_PAIR = (*_GROUP, "offload", "cache_slots", "prefetch", "concurrency", "num_requests")


@dataclass(frozen=True, slots=True)
class Comparison:
    """`points`: a line per pair, with the columns of a pair, `repeats`, and for each measure m its `m`, `m_low` and
    `m_high` as measured, `m_simulated` and `m_error`; `spread`: of each measure, how far repeats lie from their
    median, as shares of it; `unpaired`: points that only one side has."""

    points: pd.DataFrame
    spread: dict[str, np.ndarray]
    unpaired: int

    def groups(self) -> list[tuple[str, pd.DataFrame]]:
        """Points that share axes, with their title."""
        found = []
        for _, points in self.points.groupby([*_GROUP], dropna=False, sort=False):
            first = points.iloc[0]
            title = f"{first['model']}, {first['selector']}: {first['input_len']:,} in, {first['output_len']:,} out"
            found.append((f"{title}; host link: {first['link']}", points))
        return found

    def errors(self, measure: str) -> np.ndarray:
        """float64 [pairs], shares."""
        return self.points[f"{measure}_error"].to_numpy(dtype=float)


def compare(folders: Sequence[Path]) -> Comparison:
    """Pairs of the ok rows in these folders. Raises ValueError where one cannot be read or nothing pairs up."""
    rows = pd.concat([_rows(folder) for folder in folders], ignore_index=True)
    simulated = rows["engine"] == SIMULATED
    for name, part in (("simulated", rows[simulated]), ("measured", rows[~simulated])):
        if part.empty:
            raise ValueError(f"none of {', '.join(map(str, folders))} holds a point that is {name} and ok: name both")
    measured, predicted = (_by_pair(part) for part in (rows[~simulated], rows[simulated]))
    spread: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    lines = []
    for key in measured.keys() & predicted.keys():
        runs, line = measured[key], dict(zip(_PAIR, key, strict=True))
        line["repeats"] = len(runs)
        for measure in MEASURES:
            values = runs[measure].astype(float)
            median, guess = float(values.median()), float(predicted[key][measure].median())
            line |= {measure: median, f"{measure}_low": values.min(), f"{measure}_high": values.max()}
            line |= {f"{measure}_simulated": guess, f"{measure}_error": abs(guess - median) / median}
            if len(runs) > 1:
                spread[measure] += (values.sub(median).abs() / median).tolist()
        lines.append(line)
    if not lines:
        raise ValueError("no simulated point is of the same cell, concurrency and number of requests as a measured one")
    unpaired = len(measured) + len(predicted) - 2 * len(lines)
    points = pd.DataFrame(lines).sort_values([*_PAIR], ignore_index=True)
    return Comparison(points, {m: np.array(values) for m, values in spread.items()}, unpaired)


def points_table(points: pd.DataFrame) -> Table:
    """Every pair of a group."""
    headers = [("system", ""), ("C", "")]
    for words in MEASURES.values():
        headers += [(words, "measured"), ("", "simulated"), ("", "off")]
    rows = []
    for _, point in _ordered(points).iterrows():
        cells = [labels.style_of(point["offload"]).short, str(point["concurrency"])]
        for measure in MEASURES:
            off = point[f"{measure}_simulated"] / point[measure] - 1
            cells += [labels.number(point[measure]), labels.number(point[f"{measure}_simulated"]), f"{off:+.0%}"]
        rows.append(cells)
    return Table(headers, rows)


def errors_table(comparison: Comparison) -> Table:
    """The distribution of the errors, and of the repeats around their medians."""
    headers = [("error", ""), *((words, "") for words in ("median", "mean", "p90", "worst", "values"))]
    rows = [_distribution(words, comparison.errors(measure)) for measure, words in MEASURES.items()]
    rows.append(_distribution("all", np.concatenate([comparison.errors(measure) for measure in MEASURES])))
    spread = np.concatenate(list(comparison.spread.values()))
    if len(spread):
        rows.append(_distribution("for scale: a repeat from the median of its repeats", spread))
    return Table(headers, rows)


def _distribution(words: str, shares: np.ndarray) -> list[str]:
    values = (np.median(shares), shares.mean(), np.percentile(shares, 90), shares.max())
    return [words, *(f"{value:.1%}" for value in values), str(len(shares))]


def _ordered(points: pd.DataFrame) -> pd.DataFrame:
    order = [labels.system_order(system) for system in points["offload"]]
    return points.assign(_order=order).sort_values(["_order", "cache_slots", "concurrency"])


def _rows(folder: Path) -> pd.DataFrame:
    rows = store.read_rows(folder)
    if rows.empty:
        raise ValueError(f"{folder}: holds no points; name the folder of one experiment, such as results/quickstart")
    return rows[rows["status"] == Status.OK.value]


def _by_pair(rows: pd.DataFrame) -> dict[tuple[Any, ...], pd.DataFrame]:
    """Rows by what pairs them up; None where a value is NaN, which equals nothing."""
    groups = rows.groupby([*_PAIR], dropna=False, sort=False)
    return {tuple(None if pd.isna(value) else value for value in key): part for key, part in groups}
