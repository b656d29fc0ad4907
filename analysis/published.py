"""What the papers published, beside which ours is drawn: `published.csv`, one number a row with its source."""

from __future__ import annotations

from importlib import resources

import pandas as pd

COLUMNS = (
    *("paper", "figure", "platform", "model", "system", "input_len", "output_len", "concurrency"),
    *("metric", "value", "unit", "note"),
)


def rows(figure: str, *, paper: str = "hisparse") -> pd.DataFrame:
    """The published rows of one figure or section, such as `fig8`; all columns as text."""
    with resources.files("analysis").joinpath("published.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file, dtype=str, keep_default_na=False)
    return table[(table["paper"] == paper) & (table["figure"] == figure)].reset_index(drop=True)
