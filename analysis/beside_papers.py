"""Published rows in the report of a simulated experiment: ours beside them, and what each hangs on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis import comparison, labels
from analysis.frame import SIMULATED, Experiment
from analysis.table import Table

FILE = "sensitivity.csv"  # in the experiment's folder: what harness.sensitivity found
EXPLAINED = (
    "n: whole requests that a rank holds at once; N: requests of a point, C of them in flight, N = C as it is; error: "
    "ours / paper - 1"
)


@dataclass(frozen=True, slots=True)
class Beside:
    """What the report says of published rows."""

    rows: Table
    summary: str
    hangs_on: Table | None
    explained: str
    reasons: list[str]  # what a row fixed, how it was chosen by, or what speaks against it


def of(experiment: Experiment, folder: Path) -> Beside | None:
    """None where nothing published is covered by simulated rows. folder: the experiment's."""
    rows = experiment.rows[experiment.rows["engine"] == SIMULATED]
    table = comparison.compare(rows) if len(rows) else pd.DataFrame({"error": []})
    table = table[table["error"].notna()]
    if table.empty:
        return None
    file = folder / FILE
    found = pd.read_csv(file, dtype={"value": str, "input_len": str, "concurrency": str}) if file.is_file() else None
    told = table[table["reason"] != ""].to_dict("records")
    return Beside(
        rows=comparison.cells_of(table),
        summary=f"simulated; {comparison.sentence(table)}",
        hangs_on=None if found is None else hangs_on(found),
        explained=EXPLAINED,
        reasons=[f"{comparison.name(row)} ({row['label']}): {row['reason']}" for row in told],
    )


def hangs_on(table: pd.DataFrame) -> Table:
    """A line for each published row, its error in each variant: the columns beyond `comparison.standing`'s."""
    variants = [name for name in table.columns if name not in comparison.standing().columns]
    lines = []
    for row in table.to_dict("records"):
        errors = [labels.MISSING if pd.isna(row[name]) else f"{row[name]:+.0%}" for name in variants]
        lines.append([comparison.name(row), row["value"], *errors])
    return Table([("row", ""), ("paper", ""), *((name, "error") for name in variants)], lines)
