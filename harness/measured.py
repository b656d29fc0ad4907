"""Cells that serve nothing: measured in place, one after another, in a process that is replaced where it is lost."""

from __future__ import annotations

from typing import Any

from harness.cluster import NoRoom, RemoteOffline
from harness.experiment import Cell, Point
from harness.lease import Lease
from harness.offline import OfflineError
from harness.patience import OutOfTime, Patience, Tries, may_pass
from harness.recorder import Recorder
from harness.records import Status


class MeasuredCell:
    """Runs the pending points of a cell in the process of `remote`, which others may use after it and before it."""

    def __init__(self, cell: Cell, remote: Lease[RemoteOffline], recorder: Recorder, patience: Patience):
        self._cell, self._remote, self._recorder, self._patience = cell, remote, recorder, patience
        self._deadline = patience.cell()

    def run(self) -> None:
        """Every pending point has a row afterwards, unless the budget is spent; one that cannot be measured does not
        keep the others from it. Raises NoRoom and Stopped."""
        self._recorder.display.starting(self._cell)
        with self._recorder.cell(self._cell):
            for index, point in enumerate(self._cell.points):
                if self._patience.spent:
                    return
                try:
                    self._patience.check(self._deadline)
                    self._point(point)
                except OutOfTime as error:  # the cell's time
                    left = self._cell.points[index:]
                    self._recorder.give_up(self._cell, left, Status.FAILED, str(error))
                    return

    def _point(self, point: Point) -> None:
        """Raises OutOfTime for the whole cell."""
        tries = self._patience.tries()
        while True:
            self._recorder.display.running(self._cell, point, 0, 0, 0.0)
            try:
                self._measure(point, tries)
                return
            except (NoRoom, OfflineError, OutOfTime) as error:
                if isinstance(error, NoRoom) and not tries.failures:
                    raise  # it is not that a process was lost
                if may_pass(error) or isinstance(error, OutOfTime):
                    self._remote.drop()
                if isinstance(error, OutOfTime) and error.whole_cell:
                    raise
                if not tries.again(error):
                    row = self._cell.row(point, Status.FAILED, tries.note(error))
                    self._recorder.keep(self._cell, point, row, env=_scheduling(tries))
                    return
                wait_s = self._patience.pause_s(len(tries.failures))
                self._recorder.display.trying_again(self._cell, error, tries, wait_s)
                self._patience.pause(len(tries.failures))

    def _measure(self, point: Point, tries: Tries) -> None:
        check = self._patience.until(self._deadline, self._patience.point())
        remote = self._remote.get()
        measured = remote.measure(self._cell.config, point.concurrency, point.repeat, check)
        row = self._cell.row(point, Status.OK, measures=measured.measures)
        env = {"instance": remote.describe(), **_scheduling(tries)}
        self._recorder.keep(self._cell, point, row, env=env, files=measured.files)


def _scheduling(tries: Tries) -> dict[str, Any]:
    """For `env.json`."""
    said: dict[str, Any] = {"exclusive": True, "tries": tries.number}
    return {"scheduling": said | ({"failures": list(tries.failures)} if tries.failures else {})}
