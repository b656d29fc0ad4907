"""Keeping what is measured: each row goes to disk the moment it is known, then to the tracker and the display.

Several threads may keep rows. A tracker has one cell open at a time, so where cells run side by side each is told to
the tracker at its end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from harness.display import SweepDisplay
from harness.experiment import Cell, Point, experiment_dir
from harness.interrupts import shielded
from harness.lock import Lock
from harness.records import RequestRecord, ResultRow, Status
from harness.schema import to_plain
from harness.store import write_point
from harness.sysinfo import own_machine
from harness.tracking import Tracker


class Recorder:
    """Where the rows of one run go."""

    def __init__(self, tracker: Tracker, display: SweepDisplay, *, one_by_one: bool = True, lock: Lock | None = None):
        self.display = display
        self.rows: list[ResultRow] = []
        """All that were kept."""
        self._tracker, self._one_by_one = tracker, one_by_one
        self._folder_lock = lock
        self._lock = threading.Lock()
        self._told: dict[str, list[ResultRow]] = {}  # side by side: rows of open cells

    @contextmanager
    def cell(self, cell: Cell) -> Iterator[None]:
        """While a cell's rows are kept."""
        if not self._one_by_one:
            with self._lock:
                self._told[cell.cell_id] = []
            try:
                yield
            finally:
                with shielded(), self._lock:
                    self._tell(cell, self._told.pop(cell.cell_id))
            return
        try:
            self._tracker.start_cell(cell.cell_id, to_plain(cell.config))
            yield
        finally:
            with shielded():
                self._tracker.finish_cell()

    def keep(
        self,
        cell: Cell,
        point: Point,
        row: ResultRow,
        requests: Sequence[RequestRecord] = (),
        *,
        env: Mapping[str, Any] | None = None,
        log: str = "",
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write one point; `env` is said beside the driver's machine.

        Raises StoreError, and Busy when another driver has taken the folder.
        """
        if self._folder_lock:
            self._folder_lock.check()
        write_point(
            experiment_dir(cell.config),
            row,
            requests,
            config_yaml=cell.config_yaml,
            env={"driver": own_machine(), **(env or {})},
            server_log=log,
            files=files,
        )
        with self._lock:
            self.rows.append(row)
            if self._one_by_one:
                self._tracker.log_point(row)
            else:
                self._told[cell.cell_id].append(row)
            self.display.finished(cell, point, row)

    def give_up(
        self,
        cell: Cell,
        points: Sequence[Point],
        status: Status,
        reason: str,
        *,
        env: Mapping[str, Any] | None = None,
        log: str = "",
    ) -> None:
        """The same row for all of these."""
        for point in points:
            self.keep(cell, point, cell.row(point, status, reason), env=env, log=log)

    def _tell(self, cell: Cell, rows: Sequence[ResultRow]) -> None:
        self._tracker.start_cell(cell.cell_id, to_plain(cell.config))
        for row in rows:
            self._tracker.log_point(row)
        self._tracker.finish_cell()
