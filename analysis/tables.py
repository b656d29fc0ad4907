"""The summary in words and numbers, as plain cells that the terminal and the report both show."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Group as Renderables
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from analysis import labels
from analysis.frame import Group
from harness.records import Status

NAME_WIDTH = 9  # of a system's name beside its rows
ORACLE_NOTE = "* outputs invalid: a bound on what hiding all IO could give, not a system to serve with"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown. `headers` are (words, unit); the first `left` columns are words."""

    headers: list[tuple[str, str]]
    rows: list[list[str]]
    left: int = 1


def summary(group: Group) -> Table:
    """One line per series and tested concurrency; measures are means over the ok repeats."""
    unit, divisor = labels.time_unit(float(group.points["mean_ttft_ms"].max() or 0))
    measures: list[tuple[str, str, str, Callable[[float], str]]] = [
        ("output", "tok/s", "output_throughput", labels.number),
        ("decode", "tok/s", "decode_only_throughput", labels.number),
        ("TTFT", unit, "mean_ttft_ms", lambda value: labels.number(value / divisor)),
        ("TPOT", "ms", "mean_tpot_ms", labels.number),
        ("p99", "ms", "p99_tpot_ms", labels.number),
        ("peak", "run", "peak_running", labels.count),
        ("hits", "", "hit_rate", labels.percent),
        ("IO ms", "/token", "exposed_io_ms_per_token", labels.number),
    ]
    headers = [("system", ""), ("C", ""), *((words, unit) for words, unit, _, _ in measures), ("status", "")]
    rows = []
    for (index, concurrency), mine in group.rows.groupby(["series", "concurrency"]):
        point = group.points[(group.points["series"] == index) & (group.points["concurrency"] == concurrency)]
        values = [show(float(point[name].iloc[0])) if len(point) else labels.MISSING for _, _, name, show in measures]
        rows.append([group.series[index].short, f"{concurrency:,}", *values, _status(mine["status"])])
    return Table(headers, rows)


def peaks(group: Group) -> Table:
    """Each series' highest output throughput, where it was reached, and its ratio to full KV's highest."""
    best = {
        i: line.loc[line["output_throughput"].idxmax()]
        for i in range(len(group.series))
        if len(line := group.line(i, "output_throughput"))
    }
    rows = []
    for i, peak in best.items():
        base = group.baseline_of(i)
        ratio = labels.MISSING
        if base in best and base != i:
            ratio = f"{peak['output_throughput'] / best[base]['output_throughput']:.2f}"
        at = f"{int(peak['concurrency']):,}"
        running = labels.count(peak["peak_running"])
        rows.append([group.series[i].short, labels.number(peak["output_throughput"]), at, running, ratio])
    headers = [
        ("peak output throughput", ""),
        ("output", "tok/s"),
        ("at", "C"),
        ("peak", "running"),
        ("times", "full KV"),
    ]
    return Table(headers, rows)


def comparisons(group: Group) -> list[str]:
    """One sentence per series: its throughput against full KV's at the highest common concurrency."""
    sentences = []
    for i, series in enumerate(group.series):
        base = group.baseline_of(i)
        mine = group.line(i, "output_throughput")
        if base is None or base == i or mine.empty:
            continue
        both = mine.merge(group.line(base, "output_throughput"), on="concurrency", suffixes=("", "_base"))
        if both.empty:
            sentences.append(f"{series.words}: no concurrency at which full KV is ok too")
            continue
        last = both.iloc[-1]
        ratio = last["output_throughput"] / last["output_throughput_base"]
        sentence = f"{series.words} at {int(last['concurrency'])}: {ratio:.2f} times full KV"
        if pd.notna(last["peak_running"]) and pd.notna(last["peak_running_base"]):
            counts = (labels.count(last["peak_running"]), labels.count(last["peak_running_base"]))
            sentence += f" (running at once: {counts[0]} against {counts[1]})"
        sentences.append(sentence)
    return sentences


def not_ok(group: Group) -> list[str]:
    """Who is not ok, with the status and the reason; points of one system that share both are one sentence."""
    points: dict[tuple[int, str, str], list[str]] = {}
    for row in group.not_ok.sort_values(["series", "concurrency", "repeat"]).itertuples():
        reason = row.reason.strip() if isinstance(row.reason, str) else "no reason was recorded"
        point = f"{row.concurrency} (repeat {row.repeat})" if row.repeat else f"{row.concurrency}"
        points.setdefault((row.series, row.status, reason), []).append(point)
    return [
        f"{group.series[series].short} at {', '.join(which)}: {status}: {reason}"
        for (series, status, reason), which in points.items()
    ]


def notes(group: Group) -> list[str]:
    """What a reader of the table must know beyond it."""
    return [ORACLE_NOTE] if any(not series.outputs_valid for series in group.series) else []


def render(group: Group, agreement: list[str]) -> RenderableType:
    """Everything about one group for the terminal; fits 100 columns."""
    parts: list[RenderableType] = [Text(group.title, style="bold"), _rich(summary(group)), Text("")]
    parts += [Text(f"not ok: {sentence}", style="red") for sentence in not_ok(group)]
    if group.points.empty:
        parts.append(Text("no point is ok: there is nothing to draw or to compare", style="red"))
    else:
        parts += [_rich(peaks(group)), Text(""), *map(Text, comparisons(group))]
    parts += [*map(Text, agreement), *(Text(note, style="dim") for note in notes(group)), Text("")]
    return Renderables(*parts)


def _status(statuses: pd.Series) -> str:
    """The status of one cell of the table, of however many repeats."""
    ok = int((statuses == Status.OK.value).sum())
    if ok == len(statuses):
        return "ok" if ok == 1 else f"{ok} ok"
    return f"{ok}/{len(statuses)} ok" if ok else str(statuses.mode().iloc[0])


def _rich(table: Table) -> RichTable:
    """For the terminal: a system's name is written once, down its rows where it is long."""
    rich = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for i, (words, unit) in enumerate(table.headers):
        words_only = i < table.left or words == "status"
        rich.add_column(
            Text(f"{words}\n{unit}" if unit else words),
            justify="left" if words_only else "right",
            overflow="fold",
            no_wrap=not words_only,
        )
    for name, same in itertools.groupby(table.rows, key=lambda row: row[0]):
        rows = list(same)
        words = textwrap.wrap(name, NAME_WIDTH) if len(rows) > 1 else [name]
        words = words if len(words) <= len(rows) else [name]
        for row, word in itertools.zip_longest(rows, words, fillvalue=""):
            last = row is rows[-1] and len(rows) > 1
            rich.add_row(*map(Text, [word, *row[1:]]), end_section=last)
    return rich
