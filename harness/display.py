"""What a sweep shows while it runs: cell, point, tokens/s so far, time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from harness.experiment import Cell, Point
from harness.patience import Tries
from harness.plan_view import cell_labels
from harness.records import ResultRow, Status
from harness.units import show_seconds

_MOST_SHOWN = 4  # measures in a line about a point that served nothing


class SweepDisplay:
    """A live bar on a terminal, a line a point elsewhere. Time left: from the requests done so far."""

    def __init__(self, console: Console, cells: Sequence[Cell]):
        self._console = console
        self._labels = {cell.cell_id: label for cell, label in zip(cells, cell_labels(cells), strict=True)}
        self._total = sum(p.num_requests for cell in cells for p in cell.points) or 1
        self._finished = 0
        self._in_flight: dict[str, int] = {}  # requests done of each running cell's point
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

    def trying_again(self, cell: Cell, error: Exception, tries: Tries, wait_s: float) -> None:
        """A failure that may pass, before the pause that follows it."""
        which = f"try {tries.number} of {tries.most} in {show_seconds(wait_s)}"
        self.say(f"{self._labels[cell.cell_id]}: {error}; {which}")

    def starting(self, cell: Cell) -> None:
        self._bar.update(self._task, description=f"{self._labels[cell.cell_id]}: starting", rate="")

    def running(self, cell: Cell, point: Point, done: int, tokens: int, seconds: float) -> None:
        rate = f"{tokens / seconds:,.0f} tok/s" if seconds > 0 else "warming up"
        self._in_flight[cell.cell_id] = done
        done = sum(list(self._in_flight.values()))
        self._bar.update(
            self._task,
            description=f"{self._labels[cell.cell_id]} at {point.concurrency}",
            completed=self._finished + done,
            rate=rate,
            left=self._left(self._finished + done),
        )

    def finished(self, cell: Cell, point: Point, row: ResultRow) -> None:
        self._in_flight.pop(cell.cell_id, None)
        self._finished += point.num_requests
        self._bar.update(self._task, completed=self._finished, left=self._left(self._finished))
        who = f"{self._labels[cell.cell_id]} at {point.concurrency}"
        who += f", repeat {point.repeat}" if point.repeat else ""
        if row.status is Status.OK and not cell.config.engine.kind.takes_requests:
            shown = [(name, value) for name, value in row.measures.items() if value is not None][:_MOST_SHOWN]
            line = ", ".join(f"{name} {value:.4g}" for name, value in shown)
        elif row.status is Status.OK:
            m = row.measures
            line = (
                f"{_number(m.get('output_throughput'))} tok/s, TTFT {_number(m.get('mean_ttft_ms'))} ms, "
                f"TPOT {_number(m.get('mean_tpot_ms'), 1)} ms, {_number(m.get('peak_running'))} running at once"
            )
        else:
            line = f"{row.status.value}: {row.reason}"
        self.say(f"{who:<26} {line}")

    def _left(self, done: int) -> str:
        if done == 0:
            return ""
        spent = time.monotonic() - self._begin
        return f"{show_seconds(spent * (self._total - done) / done)} left"


def _number(value: float | int | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
