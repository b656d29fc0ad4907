"""What a study gives to whoever writes the files, the terminal's tables and the report."""

from __future__ import annotations

from dataclasses import dataclass, field

from matplotlib.figure import Figure

from analysis.table import Table


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure, the name of its files, and its words."""

    name: str
    figure: Figure
    caption: str
    alt: str


@dataclass(frozen=True, slots=True)
class Study:
    """The ok rows of one engine, drawn and tabled."""

    title: str
    plots: list[Plot]
    tables: list[tuple[str, Table]]  # heading, cells
    notes: list[str] = field(default_factory=list)
    terms: list[tuple[str, str]] = field(default_factory=list)  # what the words mean
