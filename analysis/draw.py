"""Everything the analysis writes for one experiment: figures, report, and the tables to print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Group as Renderables
from rich.console import RenderableType

from analysis import agreement, context, figures, report, settings, tables
from analysis.frame import Group, load


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
    for group in experiment.groups:
        agreed = agreement.sentences(agreement.check(experiment, group))
        paths, pictures = _draw_figures(group, out)
        written += paths
        sections.append(report.section(experiment, group, agreed, pictures))
        summaries.append(tables.render(group, agreed, settings.budget(experiment, group)))
    lengths = context.families(experiment.groups)
    across: list[report.Picture] = []
    if lengths:
        figure = context.build(lengths)
        written += figures.save(figure, out / "context")
        across.append(report.context_picture(lengths, figure))
        summaries += [tables.fitted(context.table(family)) for family in lengths]
    page = out / "report.html"
    by_length = [context.table(family) for family in lengths]
    page.write_text(report.render(experiment, sections, across, by_length), encoding="utf-8")
    return Drawn(written, page, Renderables(*summaries))


def _draw_figures(group: Group, out: Path) -> tuple[list[Path], list[report.Picture]]:
    """The combined figure and each panel alone; the group is in the file names where there are several."""
    panels = figures.panels_with_data(group)
    ending = f"-{group.slug}" if group.slug else ""
    paths: list[Path] = []
    pictures: list[report.Picture] = []
    if len(panels) > 1:
        paths += figures.save(figures.build(group, panels), out / f"overview{ending}")
    for panel in panels:
        figure = figures.build(group, [panel])
        paths += figures.save(figure, out / f"{panel.name}{ending}")
        pictures.append(report.picture(group, panel, figure))
    return paths, pictures
