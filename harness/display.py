"""What a sweep shows while it runs: cell, point, tokens/s so far, time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from harness.experiment import Cell, Point
from harness.records import ResultRow, Status
from harness.units import show_bytes, show_seconds


def plan_table(cells: Sequence[Cell]) -> Table:
    """Cells with what each needs, for the start of a run and for `dry_run`."""
    table = Table(title=f"{cells[0].config.name}: {len(cells)} cells", title_justify="left")
    for heading in (
        "cell",
        "N at each concurrency",
        "points",
        "one request: device (rec + sel + meta)",
        "host",
    ):
        table.add_column(heading, overflow="fold")
    table.add_column("fit at once", justify="right")
    for cell in cells:
        need = cell.request
        every = {p.concurrency: p.num_requests for p in sorted((*cell.points, *cell.done), key=lambda p: p.concurrency)}
        state = f"{len(cell.points)} to run"
        state += f", {len(cell.done)} done" if cell.done else ""
        parts = " + ".join(show_bytes(n) for n in (need.records, need.selection_state, need.metadata))
        table.add_row(
            cell.cell_id,
            " ".join(f"{c}:{n}" for c, n in every.items()),
            state,
            f"{show_bytes(need.device)} ({parts})",
            show_bytes(need.host) if need.host else "-",
            "infeasible" if cell.infeasible else str(cell.capacity),
        )
    return table


def plan_totals(cells: Sequence[Cell]) -> str:
    """One line: budgets and how many requests will be sent."""
    requests = sum(p.num_requests for cell in cells for p in cell.points if not cell.infeasible)
    points = sum(len(cell.points) for cell in cells)
    budgets = sorted({int(cell.config.engine.device_kv_budget) for cell in cells})
    hosts = sorted({int(cell.config.engine.host_kv_budget) for cell in cells})
    return (
        f"{points} points to run, {requests} requests; device KV budget "
        f"{', '.join(map(show_bytes, budgets))}, host pool {', '.join(map(show_bytes, hosts))}"
    )


class SweepDisplay:
    """A live bar on a terminal, a line a point elsewhere. Time left: from the requests done so far."""

    def __init__(self, console: Console, cells: Sequence[Cell]):
        self._console = console
        self._total = sum(p.num_requests for cell in cells for p in cell.points) or 1
        self._finished = 0
        self._begin = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("requests  {task.fields[rate]}  {task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting Ray", total=self._total, rate="", left="")

    def __enter__(self) -> SweepDisplay:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line of its own above the bar."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def starting(self, cell: Cell) -> None:
        self._bar.update(self._task, description=f"{cell.config.offload.system.value}: starting", rate="")

    def running(self, cell: Cell, point: Point, done: int, tokens: int, seconds: float) -> None:
        rate = f"{tokens / seconds:,.0f} tok/s" if seconds > 0 else "warming up"
        self._bar.update(
            self._task,
            description=f"{cell.config.offload.system.value} at {point.concurrency}",
            completed=self._finished + done,
            rate=rate,
            left=self._left(self._finished + done),
        )

    def finished(self, cell: Cell, point: Point, row: ResultRow) -> None:
        self._finished += point.num_requests
        self._bar.update(self._task, completed=self._finished, left=self._left(self._finished))
        who = f"{cell.config.offload.system.value} at {point.concurrency}"
        who += f", repeat {point.repeat}" if point.repeat else ""
        if row.status is Status.OK:
            m = row.measures
            line = (
                f"{_number(m.get('output_throughput'))} tok/s, TTFT {_number(m.get('mean_ttft_ms'))} ms, "
                f"TPOT {_number(m.get('mean_tpot_ms'), 1)} ms, {_number(m.get('peak_running'))} running at once"
            )
        else:
            line = f"{row.status.value}: {row.reason}"
        self.say(f"{who:<24} {line}")

    def _left(self, done: int) -> str:
        if done == 0:
            return ""
        spent = time.monotonic() - self._begin
        return f"{show_seconds(spent * (self._total - done) / done)} left"


def _number(value: float | int | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
