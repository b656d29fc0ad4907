"""Runs a plan on a simulation or a cluster, cell by cell or side by side, until all is done or the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from harness.cluster import Cluster, ClusterError
from harness.display import SweepDisplay
from harness.experiment import Cell, server_measures
from harness.lease import Lease
from harness.lock import Lock
from harness.measured import MeasuredCell
from harness.patience import Patience
from harness.recorder import Recorder
from harness.records import RequestRecord, ResultRow, Status
from harness.schema import to_plain
from harness.served import ServedCell
from harness.side_by_side import SideBySide
from harness.simulation import simulate_point
from harness.tracking import Tracker


class Sweep:
    """One run of an experiment's pending points, in the order of its cells.

    lock: of the results folder; None: nobody else can write to it.
    """

    def __init__(self, cells: Sequence[Cell], tracker: Tracker, display: SweepDisplay, lock: Lock | None = None):
        config = cells[0].config
        self._cells = [cell for cell in cells if cell.points]
        self._cluster_config = config.cluster
        self._patience = Patience(config.cluster)
        self._recorder = Recorder(tracker, display, one_by_one=config.cluster.exclusive, lock=lock)

    def run(self) -> list[ResultRow]:
        """All rows of this run, written to disk one by one.

        Raises ClusterError without a usable cluster, StoreError where a row cannot be written, Busy when another driver
        has taken the folder.
        """
        feasible = [cell for cell in self._cells if not cell.infeasible]
        for cell in self._cells:
            if cell.infeasible:
                with self._recorder.cell(cell):
                    self._recorder.give_up(cell, cell.points, Status.INFEASIBLE, cell.infeasible)
        for cell in feasible:
            if not cell.config.engine.kind.needs_cluster and not self._patience.spent:
                self._simulate(cell)
        placed = [cell for cell in feasible if cell.config.engine.kind.needs_cluster]
        if placed and not self._patience.spent:
            self._on_a_cluster(placed)
        return self._recorder.rows

    @property
    def left(self) -> int:
        """Points that were not run, since the budget was spent."""
        return sum(len(cell.points) for cell in self._cells) - len(self._recorder.rows)

    def _simulate(self, cell: Cell) -> None:
        """The points of a cell in virtual time, here and now: they take no machine."""
        self._recorder.display.starting(cell)
        with self._recorder.cell(cell):
            for point in cell.points:
                if self._patience.spent:
                    return
                self._recorder.display.running(cell, point, 0, 0, 0.0)
                requests: list[RequestRecord] = []
                try:
                    requests, measures, stats = simulate_point(cell.config, point.concurrency, point.num_requests)
                    measures |= server_measures(stats)
                    row = cell.row(point, Status.OK, count_source="simulated", measures=measures)
                except ValueError as error:
                    row = cell.row(point, Status.FAILED, str(error))
                self._recorder.keep(cell, point, row, requests, env={"instance": None})

    def _on_a_cluster(self, cells: Sequence[Cell]) -> None:
        processes = cells[0].config.load.processes
        cpus = max(cell.config.platform.num_cpus for cell in cells)
        with Cluster.open(self._cluster_config, cpus, processes) as cluster:
            offline = [cell for cell in cells if not cell.config.engine.kind.serves]
            for _, alike in groupby(offline, key=lambda cell: to_plain(cell.config)["platform"]):
                self._measure(list(alike), cluster)
            served = [cell for cell in cells if cell.config.engine.kind.serves]
            if served and self._cluster_config.exclusive:
                self._one_by_one(served, cluster)
            elif served:
                self._side_by_side(served, cluster)

    def _measure(self, cells: Sequence[Cell], cluster: Cluster) -> None:
        """Cells that serve nothing, in one process, which may keep what they have in common."""
        with Lease(lambda: cluster.offline(cells[0].config)) as remote:
            for cell in cells:
                if not self._patience.spent:
                    MeasuredCell(cell, remote, self._recorder, self._patience).run()

    def _one_by_one(self, cells: Sequence[Cell], cluster: Cluster) -> None:
        configs = [cell.config for cell in cells]
        with Lease(lambda: cluster.loadgen(configs[0].load.processes, configs)) as loadgen:
            for cell in cells:
                if not self._patience.spent:
                    ServedCell(cell, cluster, loadgen, self._recorder, self._patience).run()

    def _side_by_side(self, cells: Sequence[Cell], cluster: Cluster) -> None:
        """Each cell in flight has a load generator of its own."""

        def run(cell: Cell) -> None:
            check = self._patience.until()
            with Lease(lambda: cluster.loadgen(cell.config.load.processes, [cell.config], check)) as loadgen:
                ServedCell(cell, cluster, loadgen, self._recorder, self._patience, lambda: beside(cell)).run()

        def beside(cell: Cell) -> list[str]:
            return [other.cell_id for other in flight.beside(cell)]

        def fits(running: Sequence[Cell], cell: Cell) -> bool:
            return cluster.fits_beside([other.config for other in running], cell.config)

        flight = SideBySide(run, fits, self._patience)
        flight.all(cells)


__all__ = ["ClusterError", "Sweep"]
