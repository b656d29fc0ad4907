"""Everything the analysis writes for one experiment: figures, report, and the tables to print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Group as Renderables
from rich.console import RenderableType
from rich.text import Text

from analysis import agreement, beside_papers, canvas, context, figures, report, settings, tables
from analysis.frame import Group, load
from analysis.studies import STUDIES, Study
from harness.records import Status


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was written. `summary` is for the caller to print: `rich.console.Console().print(summary)`."""

    figures: list[Path]
    report: Path
    summary: RenderableType


def draw(experiment_dir: Path | str, out: Path | str | None = None) -> Drawn:
    """Draw one experiment into `out` (default: `experiment_dir`/figures).

    Raises ValueError for a folder that is missing, holds no points or has a corrupt one. Points that are
    not ok are listed, never drawn; with no ok point there are no figures but still a report.
    """
    experiment = load(experiment_dir)
    out = Path(out) if out else Path(experiment_dir) / "figures"
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    sections: list[report.Section] = []
    summaries: list[RenderableType] = []
    for engine, make in STUDIES.items():
        mine = experiment.rows[experiment.rows["engine"] == engine]
        if len(mine):
            paths, made, shown = _draw_study(make, mine, out)
            written += paths
            sections.append(made)
            summaries.append(shown)
    serving = [group for group in experiment.groups if group.key["engine"] not in STUDIES]
    for group in serving:
        agreed = agreement.sentences(agreement.check(experiment, group))
        paths, pictures = _draw_figures(group, out)
        written += paths
        sections.append(report.section(experiment, group, agreed, pictures))
        summaries.append(tables.render(group, agreed, settings.budget(experiment, group)))
    lengths = context.families(serving)
    by_length = [context.table(family) for family in lengths]
    across: list[report.Picture] = []
    if lengths:
        figure = context.build(lengths)
        written += canvas.save(figure, out / "context")
        across.append(report.context_picture(lengths, figure))
        summaries += map(tables.Fitted, by_length)
    page = out / "report.html"
    text = report.render(experiment, sections, across, by_length, beside_papers.of(experiment, Path(experiment_dir)))
    page.write_text(text, encoding="utf-8")
    return Drawn(written, page, Renderables(*summaries))


def _draw_study(
    make: Callable[[pd.DataFrame], Study], rows: pd.DataFrame, out: Path
) -> tuple[list[Path], report.Section, RenderableType]:
    """The files, the section and the terminal's tables of a study; its rows that are not ok are listed only."""
    ok = rows[rows["status"] == Status.OK.value]
    not_ok = tables.not_ok_rows(rows)
    if ok.empty:
        nothing = Study("No point is ok", [], [])
        return [], report.study_section(nothing, [], not_ok), _study_tables(nothing, not_ok)
    found = make(ok)
    paths: list[Path] = []
    pictures = []
    for plot in found.plots:
        paths += canvas.save(plot.figure, out / plot.name)
        pictures.append(report.study_picture(plot))
    section = report.study_section(found, pictures, not_ok)
    return paths, section, _study_tables(found, not_ok)


def _study_tables(study: Study, not_ok: list[str]) -> RenderableType:
    parts: list[RenderableType] = [Text(study.title, style="bold"), Text("")]
    for heading, cells in study.tables:
        parts += [Text(heading), tables.Fitted(cells), Text("")]
    parts += [Text(f"not ok: {sentence}", style="red") for sentence in not_ok]
    return Renderables(*parts, *(Text(note, style="dim") for note in study.notes))


def _draw_figures(group: Group, out: Path) -> tuple[list[Path], list[report.Picture]]:
    """The combined figure and each panel alone; the group is in the file names where there are several."""
    panels = figures.panels_with_data(group)
    ending = f"-{group.slug}" if group.slug else ""
    paths: list[Path] = []
    pictures: list[report.Picture] = []
    if len(panels) > 1:
        paths += canvas.save(figures.build(group, panels), out / f"overview{ending}")
    alone = [figures.PARETO] if figures.PARETO.has_data(group) else []
    for panel in (*panels, *alone):
        figure = figures.build(group, [panel])
        paths += canvas.save(figure, out / f"{panel.name}{ending}")
        pictures.append(report.picture(group, panel, figure))
    return paths, pictures
