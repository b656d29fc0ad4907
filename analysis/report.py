"""`report.html`: the experiment on one page that needs no network, no script and no other file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import jinja2
from matplotlib.figure import Figure

from analysis import canvas, context, figures, hidden_io, labels, legend, settings, tables
from analysis.beside_papers import Beside
from analysis.frame import Experiment, Group, flatten
from analysis.studies import Plot, Study
from analysis.table import Table
from harness import store
from harness.records import Status

_SHOWN_VALUES = 3  # of an environment key that differs between points
_OF_ONE_RUN = ("pid", "server_pid", "placement_group", "node_id", "beside", "failures")
_CAPTIONS = {
    "throughput": "Generated tokens per second against the number of requests the client keeps in flight.",
    "ttft": "Mean time to first token against output throughput; point labels give the concurrency.",
    "tpot": "Mean time per output token against output throughput; point labels give the concurrency.",
    "io": "Time a token waited for records from the host pool: what prefetch hides is the distance from sync.",
    "pareto": "Generated tokens per second of each device against those that one user sees (1 / mean TPOT): up and "
    "to the right is better; point labels give the concurrency.",
    "running": "The most requests the server ran at once: where a line is flat, more did not fit.",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure of the report: an SVG as a data URI, its caption and its words for a screen reader."""

    uri: str
    caption: str
    alt: str


@dataclass(frozen=True, slots=True)
class Section:
    """One group of the report."""

    title: str
    pictures: list[Picture]
    tables: list[tuple[str, Table]]  # heading, cells
    not_ok: list[str]
    notes: list[str]  # below the first table
    comparisons: list[str] = field(default_factory=list)
    agreement: list[str] = field(default_factory=list)
    budget: list[str] = field(default_factory=list)
    configuration: list[tuple[str, str]] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)  # below the last table
    terms: list[tuple[str, str]] = field(default_factory=list)  # words that only this section has


def picture(group: Group, panel: figures.Panel, figure: Figure) -> Picture:
    """A drawn panel as a picture of the report."""
    lines = [series.words for i, series in enumerate(group.series) if len(group.line(i, *panel.needs))]
    more = " Bars: lowest and highest repeat." if (group.points["repeats"] > 1).any() else ""
    left_out = panel.name == "throughput" and not legend.draws_decode_only(group)
    if left_out and group.points[legend.DECODE_ONLY].notna().any():
        more += " Decode-only throughput is left out for so many lines; the table has it."
    caption = _CAPTIONS[panel.name] if group.is_closed else _open_loop(_CAPTIONS[panel.name], group)
    return Picture(_uri(figure), caption + more, f"{panel.title}: {'; '.join(lines)}")


def _open_loop(caption: str, group: Group) -> str:
    """A caption made for the closed loop, said of a group whose points differ in their pace."""
    for words in ("the number of requests the client keeps in flight", "the concurrency"):
        caption = caption.replace(words, f"the {group.axis.name} of the open loop")
    return caption


def _uri(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(canvas.svg(figure)).decode()


def study_picture(plot: Plot) -> Picture:
    """A study's figure as a picture of the report."""
    return Picture(_uri(plot.figure), plot.caption, plot.alt)


def study_section(study: Study, pictures: list[Picture], not_ok: list[str]) -> Section:
    """The report's view of a study."""
    return Section(study.title, pictures, study.tables, not_ok, study.notes, terms=study.terms)


def section(experiment: Experiment, group: Group, agreement: list[str], pictures: list[Picture]) -> Section:
    """The report's view of a group."""
    hidden = hidden_io.table(group)
    return Section(
        title=group.title,
        pictures=pictures,
        tables=[
            ("Every point", tables.summary(group)),
            *([(tables.REPEATS_HEADING, spread)] if (spread := tables.repeats(group)) else []),
            *([("Peak throughput", tables.peaks(group))] if len(group.points) else []),
            *([(hidden_io.TITLE, hidden)] if hidden is not None else []),
        ],
        explained=list(hidden_io.TERMS) if hidden is not None else [],
        comparisons=tables.comparisons(group),
        agreement=agreement,
        not_ok=tables.not_ok(group),
        notes=tables.notes(group),
        budget=settings.budget(experiment, group),
        configuration=settings.configuration(experiment, group),
    )


def context_picture(families: Sequence[context.Family], figure: Figure) -> Picture:
    """The figure across groups of different context lengths."""
    caption = "The best output throughput of each system at each context length, and its ratio to full KV's best."
    titles = "; ".join(family.title for family in families)
    return Picture(_uri(figure), caption, f"Peak output throughput against context length: {titles}")


def render(
    experiment: Experiment,
    sections: Sequence[Section],
    across: Sequence[Picture] = (),
    by_length: Sequence[Table] = (),
    published: Beside | None = None,
) -> str:
    """The whole page as one string of HTML. across, by_length: what compares groups with one another; published: with
    papers."""
    template = resources.files("analysis").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    rows = experiment.rows
    return environment.from_string(template).render(
        name=experiment.name,
        description=experiment.description,
        sections=sections,
        across=across,
        by_length=by_length,
        published=published,
        points=labels.plural(len(rows), "point"),
        ok=int((rows["status"] == Status.OK.value).sum()),
        environment=environment_table([Path(path) for path in rows["point_path"]]),
        count_sources=sorted(set(rows["count_source"].dropna())),
        repeats=int(rows["repeat"].nunique()),
        requests=sorted({int(n) for n in rows["num_requests"]}),
        serving=any(section.agreement for section in sections),
        terms=list(dict.fromkeys(term for section in sections for term in section.terms)),
        oracle=bool((~rows["outputs_valid"]).any()),
    )


def environment_table(points: Sequence[Path]) -> list[tuple[str, str]]:
    """(dotted key, value) of the points' env.json; a key that differs shows its first few values.

    What the load generator's and the instance's machine have in common with the driver's is said once, and
    the server's own description and what names a process of one run are left to the file.
    """
    seen: dict[str, dict[str, None]] = {}
    for point in points:
        env = store.read_env(point)
        driver = dict(flatten({"driver": env.get("driver", {})}))
        for key, value in flatten(env):
            twin = "driver." + key.split(".", 1)[-1].removeprefix("machine.")
            if (
                key.startswith(("instance.server.", "instance.nodes"))
                or key.rpartition(".")[2] in _OF_ONE_RUN
                or (key != twin and twin in driver and driver[twin] == value)
            ):
                continue
            seen.setdefault(key, {})[settings.words(value)] = None
    table = []
    for key, values in seen.items():
        shown = list(values)[:_SHOWN_VALUES]
        more = f" and {len(values) - len(shown)} more" if len(values) > len(shown) else ""
        table.append((key, " | ".join(shown) + more))
    return table
