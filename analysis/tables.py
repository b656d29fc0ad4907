"""The summary in words and numbers, as plain cells that the terminal and the report both show."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Renderables
from rich.table import Table as RichTable
from rich.text import Text

from analysis import hidden_io, labels
from analysis.frame import Group
from analysis.table import Table
from harness.loadgen.bootstrap import repeats_interval
from harness.records import Status

NAME_WIDTH = 9  # of a system's name beside its rows
ORACLE_NOTE = "* outputs invalid: a bound on what hiding all IO could give, not a system to serve with"
ONE_REPEAT_NOTE = "one repeat: no spread is known; load.repeats=3 draws it"
REPEATS_HEADING = "Means over the repeats, with 95% bootstrap intervals"
_UNBOUNDED = 10_000  # columns


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
    if group.points["goodput"].notna().any():
        measures.append(("good", "put", "goodput", labels.percent))
    headers = [
        ("system", ""),
        (group.axis.header, ""),
        *((words, unit) for words, unit, _, _ in measures),
        ("status", ""),
    ]
    rows = []
    for (index, concurrency), mine in group.rows.groupby(["series", "concurrency"]):
        point = group.points[(group.points["series"] == index) & (group.points["concurrency"] == concurrency)]
        values = [show(float(point[name].iloc[0])) if len(point) else labels.MISSING for _, _, name, show in measures]
        rows.append([group.series[index].short, group.at(concurrency), *values, _status(mine["status"])])
    return Table(headers, rows)


def repeats(group: Group) -> Table | None:
    """Means over the ok repeats with their 95% bootstrap intervals; None where no point has enough of them."""
    measures = (
        ("output", "tok/s", "output_throughput"),
        ("mean TTFT", "ms", "mean_ttft_ms"),
        ("mean TPOT", "ms", "mean_tpot_ms"),
    )
    rows = []
    ok = group.rows[group.rows["status"] == Status.OK.value]
    for (index, concurrency), mine in ok.groupby(["series", "concurrency"]):
        cells = [_with_interval(mine[name].dropna().to_numpy(dtype=float)) for _, _, name in measures]
        if any(cells):
            shown = [cell or labels.MISSING for cell in cells]
            rows.append([group.series[index].short, group.at(concurrency), f"{len(mine)}", *shown])
    headers = [
        ("system", ""),
        (group.axis.header, ""),
        ("repeats", ""),
        *((words, unit) for words, unit, _ in measures),
    ]
    return Table(headers, rows) if rows else None


def _with_interval(values: np.ndarray) -> str:
    """`302 (295–310)`, empty where there are too few."""
    bounds = repeats_interval(values)
    if bounds is None:
        return ""
    return f"{labels.number(values.mean())} ({labels.number(bounds[0])}–{labels.number(bounds[1])})"


def peaks(group: Group) -> Table:
    """Each series' highest output throughput, where it was reached, and its ratio to full KV's highest."""
    best = group.best_points()
    rows = []
    for i, peak in best.items():
        base = group.baseline_of(i)
        ratio = labels.MISSING
        if base in best and base != i:
            ratio = f"{peak['output_throughput'] / best[base]['output_throughput']:.2f}"
        at = group.at(peak["concurrency"])
        running = labels.count(peak["peak_running"])
        rows.append([group.series[i].short, labels.number(peak["output_throughput"]), at, running, ratio])
    headers = [
        ("peak output throughput", ""),
        ("output", "tok/s"),
        ("at", group.axis.header),
        ("peak", "running"),
        ("times", "full KV"),
    ]
    return Table(headers, rows)


def comparisons(group: Group) -> list[str]:
    """One sentence per series at the highest concurrency it shares with full KV: against full KV there and at its best.

    Both ratios, because full KV may be past its best at that concurrency.
    """
    sentences = []
    for i, series in enumerate(group.series):
        base = group.baseline_of(i)
        mine = group.line(i, "output_throughput")
        if base is None or base == i or mine.empty:
            continue
        full = group.line(base, "output_throughput")
        both = mine.merge(full, on="concurrency", suffixes=("", "_base"))
        if both.empty:
            sentences.append(f"{series.words}: no {group.axis.name} at which full KV is ok too")
            continue
        last = both.iloc[-1]
        sentences.append(f"{series.words} {_against(group, last, full.loc[full['output_throughput'].idxmax()])}")
    return sentences


def _against(group: Group, last: pd.Series, best: pd.Series) -> str:
    """`at 16: 1.47 times full KV at 16, 0.81 times ...` from a merged point and full KV's best point."""
    at = group.at(last["concurrency"])
    mine, there, highest = last["output_throughput"], last["output_throughput_base"], best["output_throughput"]
    found = (
        f"at {at}: {mine / there:.2f} times full KV at {at}, {mine / highest:.2f} times full KV's best "
        f"({labels.number(highest)} tok/s at {group.at(best['concurrency'])})"
    )
    if pd.notna(last["peak_running"]) and pd.notna(last["peak_running_base"]):
        counts = (labels.count(last["peak_running"]), labels.count(last["peak_running_base"]))
        found += f"; running at once: {counts[0]} against {counts[1]}"
    return found


def not_ok(group: Group) -> list[str]:
    """Who is not ok, with the status and the reason; points of one system that share both are one sentence."""
    points: dict[tuple[int, str, str], list[str]] = {}
    for row in group.not_ok.sort_values(["series", "concurrency", "repeat"]).itertuples():
        reason = row.reason.strip() if isinstance(row.reason, str) else "no reason was recorded"
        at = group.at(row.concurrency)
        point = f"{at} (repeat {row.repeat})" if row.repeat else at
        points.setdefault((row.series, row.status, reason), []).append(point)
    return [
        f"{group.series[series].short} at {', '.join(which)}: {status}: {reason}"
        for (series, status, reason), which in points.items()
    ]


def notes(group: Group) -> list[str]:
    """What a reader of the table must know beyond it."""
    found = [ORACLE_NOTE] if any(not series.outputs_valid for series in group.series) else []
    if group.rows["repeat"].nunique() == 1:
        found.append(ONE_REPEAT_NOTE)
    return found


def render(group: Group, agreement: list[str], budget: list[str]) -> RenderableType:
    """Everything about one group for the terminal; readable on 80 columns."""
    parts: list[RenderableType] = [Text(group.title, style="bold"), *map(Text, budget), Text("")]
    parts += [Fitted(summary(group)), Text("")]
    spread = repeats(group)
    if spread:
        parts += [Text(REPEATS_HEADING), Fitted(spread), Text("")]
    parts += [Text(f"not ok: {sentence}", style="red") for sentence in not_ok(group)]
    if group.points.empty:
        parts.append(Text("no point is ok: there is nothing to draw or to compare", style="red"))
    else:
        parts += [Fitted(peaks(group)), Text("")]
        if (hidden := hidden_io.table(group)) is not None:
            parts += [Fitted(hidden), Text("")]
        parts += map(Text, comparisons(group))
    parts += [*map(Text, agreement), *(Text(note, style="dim") for note in notes(group)), Text("")]
    return Renderables(*parts)


def not_ok_rows(rows: pd.DataFrame) -> list[str]:
    """As `not_ok`, for rows of cells that serve nothing."""
    points: dict[tuple[str, str, str], list[str]] = {}
    bad = rows[rows["status"] != Status.OK.value]
    for row in bad.sort_values(["cell_id", "concurrency", "repeat"]).itertuples():
        points.setdefault((row.cell_id, row.status, str(row.reason)), []).append(f"{row.concurrency}")
    return [f"{cell} at {', '.join(which)}: {status}: {reason}" for (cell, status, reason), which in points.items()]


def _status(statuses: pd.Series) -> str:
    """The status of one cell of the table, of however many repeats."""
    ok = int((statuses == Status.OK.value).sum())
    if ok == len(statuses):
        return "ok" if ok == 1 else f"{ok} ok"
    return f"{ok}/{len(statuses)} ok" if ok else str(statuses.mode().iloc[0])


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table for the terminal, its names as wide as they like to be or as narrow as the console asks for."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(max_width=_UNBOUNDED)
        names = [row[0] for row in self.table.rows]
        longest = max(map(len, names), default=NAME_WIDTH)
        wanted = console.measure(_rich(self.table, longest), options=unbounded).maximum
        lines = [line for name in set(names) for line in name_lines(name, names.count(name), longest)]
        others = wanted - max(map(len, [*lines, self.table.headers[0][0]]))
        yield _rich(self.table, max(NAME_WIDTH, min(longest, options.max_width - others)))


def _rich(table: Table, widest: int) -> RichTable:
    """A system's name is written once, down its rows where it is long, in at most `widest` columns if it can be."""
    rich = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for i, (words, unit) in enumerate(table.headers):
        words_only = i < table.left or words == "status"
        rich.add_column(
            Text(f"{words}\n{unit}" if unit else words), justify="left" if words_only else "right", no_wrap=True
        )
    for name, same in itertools.groupby(table.rows, key=lambda row: row[0]):
        rows = list(same)
        lines = name_lines(name, len(rows), widest)
        for row, line in itertools.zip_longest(rows, lines, fillvalue=""):
            last = row is rows[-1] and len(rows) > 1
            rich.add_row(*map(Text, [line, *row[1:]]), end_section=last)
    return rich


def name_lines(name: str, rows: int, widest: int) -> list[str]:
    """A name as at most `rows` cells, as narrow as that allows; past `widest` columns its last cell has more lines."""
    for width in range(NAME_WIDTH, widest + 1):
        lines = _wrap(name, width)
        if len(lines) <= rows:
            return lines
    lines = _wrap(name, widest)
    return [*lines[: rows - 1], "\n".join(lines[rows - 1 :])]


def _wrap(name: str, width: int) -> list[str]:
    """Lines of at most `width` where words allow it: breaks at spaces, else after `_` and `=`, never in a number."""
    lines = [""]
    for word in name.split():
        pieces = [word] if len(word) <= width else re.findall(r"[^_=]*[_=]|[^_=]+", word)
        for i, piece in enumerate(pieces):
            gap = " " if i == 0 and lines[-1] else ""
            if lines[-1] and len(lines[-1] + gap + piece) > width:
                lines.append(piece)
            else:
                lines[-1] += gap + piece
    return lines
