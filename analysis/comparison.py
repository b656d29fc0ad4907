"""Every published number, ours beside it where an experiment covers it, and how much that says.

python -m analysis.comparison results/fig1 results/fig4 results/fig5 results/fig8

`standing.csv` labels each published row: `fitted` (it fixed a scalar of the platform file), `held-out` (nothing was
set by it), `chosen-after-seeing` (a mechanism was chosen with it in view), `inconsistent-source` (it cannot hold
together with other published rows), `not-covered`. Errors are summed up over held-out rows alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pandas as pd
from rich.console import Console

from analysis import labels, published
from analysis.tables import Fitted, Table
from harness import store
from harness.records import Status

KEY = ("paper", "figure", "platform", "model", "system", "input_len", "concurrency", "metric")
LABELS = ("fitted", "held-out", "chosen-after-seeing", "inconsistent-source", "not-covered")
_FIXED_NOTHING = ("held-out", "chosen-after-seeing", "inconsistent-source")
PLATFORMS = {"8xH200": "h200x8", "2xB200": "b200x2", "1xGH200": "gh200"}
MODELS = {
    "glm-5.1-fp8": "glm51",
    "glm-5.2-fp8": "glm52",
    "deepseek-v4-flash": "deepseek_v4_flash",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
}
_MEASURES = {  # published metric -> ours, and what ours is divided by
    "throughput": ("output_throughput", 1.0),
    "decode_only_throughput": ("decode_only_throughput", 1.0),
    "mean_ttft": ("mean_ttft_ms", 1e3),
    "mean_tpot": ("mean_tpot_ms", 1.0),
    "concurrent_requests": ("peak_running", 1.0),
    "exposed_io_per_token": ("mean_tpot_ms", 1.0),  # over the oracle's
}
_SYSTEMS = {"hisparse": "hisparse_sync"}
_ORACLE = "no_io_oracle"


def standing() -> pd.DataFrame:
    """Every published row with its label and the reason; all columns as text."""
    with resources.files("analysis").joinpath("standing.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file, dtype=str, keep_default_na=False)
    return published.table().merge(table, on=list(KEY), how="left", validate="one_to_one")


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """`standing` with `ours` and `error` (ours / published - 1), NaN where no ok row covers it.

    rows: of one or more experiments (`store.read_rows`). Where repeats or variants (N = 4C) of a point exist, the one
    with the fewest requests counts, as the papers' figures imply.
    """
    table = standing()
    ok = rows[rows["status"] == Status.OK.value].sort_values("num_requests")
    table["ours"] = [_ours(row, ok) for row in table.to_dict("records")]
    table["error"] = pd.to_numeric(table["ours"]) / pd.to_numeric(table["value"], errors="coerce") - 1  # one is a range
    return table


def summary(table: pd.DataFrame, kinds: Sequence[str] = ("held-out",)) -> dict[str, float]:
    """Of the covered rows with these labels: their number, and mean, median and worst absolute error."""
    errors = table.loc[table["label"].isin(kinds) & table["error"].notna(), "error"].abs()
    return {
        "rows": len(errors),
        "mean": float(errors.mean()),
        "median": float(errors.median()),
        "worst": float(errors.max()),
    }


def _ours(row: dict[str, str], ok: pd.DataFrame) -> float | None:
    measure, unit = _MEASURES.get(row["metric"], (None, 1.0))
    if measure is None or row["label"] == "not-covered":
        return None
    cells = ok[(ok["model"] == MODELS.get(row["model"])) & (ok["platform"] == PLATFORMS.get(row["platform"]))]
    if row["input_len"]:
        cells = cells[cells["input_len"] == int(row["input_len"])]
    value = _at(cells, _SYSTEMS.get(row["system"], row["system"]), measure, row["concurrency"])
    if value is None:
        return None
    if row["metric"] == "exposed_io_per_token":
        oracle = _at(cells, _ORACLE, measure, row["concurrency"])
        return None if oracle is None else value - oracle
    return value / unit


def _at(cells: pd.DataFrame, system: str, measure: str, concurrency: str) -> float | None:
    """A measure at one concurrency, or its best over all of them for `peak` and `saturation`."""
    mine = cells[cells["offload"] == system].dropna(subset=[measure])
    mine = mine.drop_duplicates("concurrency")
    if concurrency.isdigit():
        mine = mine[mine["concurrency"] == int(concurrency)]
    return float(mine[measure].max()) if len(mine) else None


def name(row: dict[str, str]) -> str:
    """A published row in words: figure, model, system, metric, and at what."""
    at = f"{row['input_len']} in" if row["concurrency"] == "peak" else f"at {row['concurrency']}"
    return f"{row['figure']} {row['model'].removesuffix('-fp8')} {row['system']} {row['metric']} {at}"


def cells_of(table: pd.DataFrame) -> Table:
    """For the terminal: one line a published row of the papers' runs."""
    headers = [("row", ""), ("paper", ""), ("ours", ""), ("error", ""), ("label", "")]
    lines = []
    for row in table[table["paper"] == "hisparse"].to_dict("records"):
        error = labels.MISSING if pd.isna(row["error"]) else f"{row['error']:+.1%}"
        ours = None if pd.isna(row["ours"]) else float(row["ours"])
        lines.append([name(row), _published(row["value"]), labels.number(ours), error, row["label"]])
    return Table(headers, lines)


def _published(value: str) -> str:
    try:
        return labels.number(float(value))
    except ValueError:  # a range, such as 1-4
        return value


def sentence(table: pd.DataFrame) -> str:
    """The held-out errors in words, and beside them those of all rows that fixed nothing, whatever their label."""
    held, all_rows = summary(table), summary(table, _FIXED_NOTHING)
    if not held["rows"]:
        return "no held-out row is covered by these experiments"
    doubted = f"; with the doubted and the chosen ones, {_in_words(all_rows)}"
    return f"held-out rows: {_in_words(held)}{doubted if all_rows['rows'] > held['rows'] else ''}"


def _in_words(found: dict[str, float]) -> str:
    return (
        f"{found['rows']}, absolute error: mean {found['mean']:.1%}, median {found['median']:.1%}, "
        f"worst {found['worst']:.1%}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 where a folder cannot be read, with one line that says why."""
    parser = argparse.ArgumentParser(prog="python -m analysis.comparison", description="Ours beside published numbers.")
    parser.add_argument("experiment_dirs", type=Path, nargs="+", help="folders such as results/fig8")
    parser.add_argument("--csv", type=Path, help="write the whole table there too")
    options = parser.parse_args(arguments)
    try:
        rows = pd.concat([store.read_rows(folder) for folder in options.experiment_dirs], ignore_index=True)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = compare(rows)
    if options.csv:
        table.to_csv(options.csv, index=False)
    console = Console()
    console.print(Fitted(cells_of(table)))
    engines = ", ".join(sorted(set(rows["engine"])))
    console.print(f"engine: {engines}. {sentence(table)}", highlight=False)
    for row in table[(table["label"] == "inconsistent-source")].to_dict("records"):
        console.print(f"inconsistent-source: {name(row)}: {row['reason']}", style="dim", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
