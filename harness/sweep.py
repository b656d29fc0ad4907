"""Runs a plan: brings up each cell's instance, drives its points, writes each row the moment it is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from harness.cluster import Cluster, ClusterError, LoadgenError, RemoteInstance, RemoteLoadgen, RemoteOffline
from harness.display import SweepDisplay
from harness.experiment import Cell, Point, experiment_dir, server_measures
from harness.instances import InstanceError
from harness.interrupts import shielded
from harness.loads import point_loads, point_row, prompt_source
from harness.lock import Lock
from harness.offline import OfflineError
from harness.records import RequestRecord, ResultRow, Status
from harness.schema import to_plain
from harness.simulation import simulate_point
from harness.store import write_point
from harness.sysinfo import driver_machine
from harness.tracking import Tracker
from workloads import Source


@dataclass(slots=True)
class Sweep:
    """One run of an experiment's pending points."""

    cells: Sequence[Cell]
    tracker: Tracker
    display: SweepDisplay
    lock: Lock | None = None  # of the results folder; None: nobody else can write to it

    def run(self) -> list[ResultRow]:
        """All rows of this run, written to disk one by one.

        Raises ClusterError without a usable cluster, StoreError where a row cannot be written, Busy when another driver
        has taken the folder.
        """
        config = self.cells[0].config
        rows: list[ResultRow] = []
        for cell in self.cells:
            if cell.points and cell.infeasible:
                with self._tracked(cell):
                    rows += self._give_up(cell, cell.points, Status.INFEASIBLE, cell.infeasible)
        feasible = [cell for cell in self.cells if cell.points and not cell.infeasible]
        for cell in feasible:
            if not cell.config.engine.kind.needs_cluster:
                rows += self._simulate(cell)
        feasible = [cell for cell in feasible if cell.config.engine.kind.needs_cluster]
        if feasible:
            cpus = max(cell.config.platform.num_cpus for cell in feasible)
            with Cluster.open(config.cluster, cpus, config.load.processes) as cluster:
                offline = [cell for cell in feasible if not cell.config.engine.kind.serves]
                for _, alike in groupby(offline, key=lambda cell: to_plain(cell.config)["platform"]):
                    rows += self._measure_offline(list(alike), cluster)
                served = [cell for cell in feasible if cell.config.engine.kind.serves]
                if served:
                    with cluster.loadgen(config.load.processes) as loadgen:
                        for cell in served:
                            rows += self._run_cell(cell, cluster, loadgen)
        return rows

    def _simulate(self, cell: Cell) -> list[ResultRow]:
        """The points of a cell in virtual time, here and now: they take no machine."""
        self.display.starting(cell)
        rows, env = [], {"driver": driver_machine(), "instance": None}
        with self._tracked(cell):
            for point in cell.points:
                self.display.running(cell, point, 0, 0, 0.0)
                requests: list[RequestRecord] = []
                try:
                    requests, measures, stats = simulate_point(cell.config, point.concurrency, point.num_requests)
                    measures |= server_measures(stats)
                    row = cell.row(point, Status.OK, count_source="simulated", measures=measures)
                except ValueError as error:
                    row = cell.row(point, Status.FAILED, str(error))
                self._keep(cell, point, row, requests, env, "")
                rows.append(row)
        return rows

    def _measure_offline(self, cells: list[Cell], cluster: Cluster) -> list[ResultRow]:
        """The points of cells that serve nothing, in one process, which may keep what they have in common; one that
        cannot be measured does not keep the others from it."""
        rows = []
        with cluster.offline(cells[0].config) as remote:
            for cell in cells:
                self.display.starting(cell)
                with self._tracked(cell):
                    rows += [self._measure_point(cell, point, remote) for point in cell.points]
        return rows

    def _measure_point(self, cell: Cell, point: Point, remote: RemoteOffline) -> ResultRow:
        self.display.running(cell, point, 0, 0, 0.0)
        env: dict[str, Any] = {"driver": driver_machine()}
        files: dict[str, bytes] = {}
        try:
            measured = remote.measure(cell.config, point.concurrency, point.repeat)
            row, files = cell.row(point, Status.OK, measures=measured.measures), measured.files
            env["instance"] = remote.describe()
        except OfflineError as error:
            row = cell.row(point, Status.FAILED, str(error))
        self._keep(cell, point, row, [], env, "", files)
        return row

    def _run_cell(self, cell: Cell, cluster: Cluster, loadgen: RemoteLoadgen) -> list[ResultRow]:
        self.display.starting(cell)
        try:
            source = prompt_source(cell.config)
        except ValueError as error:  # no such files
            with self._tracked(cell):
                return self._give_up(cell, cell.points, Status.FAILED, str(error))
        # the tracker's run is opened while the server starts, and closed after it has ended
        with ExitStack() as tracked, cluster.instance(cell.config) as instance:
            tracked.enter_context(self._tracked(cell))
            return self._run_points(cell, source, instance, loadgen)

    def _run_points(
        self, cell: Cell, source: Source, instance: RemoteInstance, loadgen: RemoteLoadgen
    ) -> list[ResultRow]:
        rows: list[ResultRow] = []
        try:
            instance.wait_started()
            env = {"driver": driver_machine(), "loadgen": loadgen.describe(), "instance": instance.describe()}
            for point in cell.points:
                rows.append(self._run_point(cell, point, source, instance, loadgen, env))
        except (InstanceError, LoadgenError) as error:  # it did not start, or its server is gone
            log = _last_words(instance)
            rows += self._give_up(cell, cell.points[len(rows) :], Status.FAILED, str(error), log)
        return rows

    @contextmanager
    def _tracked(self, cell: Cell) -> Iterator[None]:
        try:
            self.tracker.start_cell(cell.cell_id, to_plain(cell.config))
            yield
        finally:
            with shielded():
                self.tracker.finish_cell()

    def _run_point(
        self,
        cell: Cell,
        point: Point,
        source: Source,
        instance: RemoteInstance,
        loadgen: RemoteLoadgen,
        env: dict[str, Any],
    ) -> ResultRow:
        """Warm up, flush, measure, write. Raises InstanceError when the server has died before the point."""
        instance.check()
        self.display.running(cell, point, 0, 0, 0.0)
        requests: list[RequestRecord] = []
        files: dict[str, bytes] = {}
        try:
            measured, warmup = point_loads(cell.config, point, source, instance.url)
            if warmup:
                warm = loadgen.run(warmup)
                if warm.status is Status.FAILED:
                    raise InstanceError(f"warm-up failed: {warm.reason}")
            instance.flush()
            before = instance.stats()
            result = loadgen.run(measured, lambda *now: self.display.running(cell, point, *now))
            requests = result.requests
            row = point_row(cell, point, result, instance.stats().since(before))
            if cell.config.trace.record:
                files = {"selections.trace": trace} if (trace := instance.selection_trace()) else {}
            log = instance.new_log()
        except (InstanceError, LoadgenError, ValueError) as error:  # ValueError: too little text for the prompts
            row, log = cell.row(point, Status.FAILED, str(error)), _last_words(instance)
        self._keep(cell, point, row, requests, env, log, files)
        return row

    def _keep(
        self,
        cell: Cell,
        point: Point,
        row: ResultRow,
        requests: list[RequestRecord],
        env: dict[str, Any],
        log: str,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        folder = experiment_dir(cell.config)
        if self.lock:
            self.lock.check()
        write_point(folder, row, requests, config_yaml=cell.config_yaml, env=env, server_log=log, files=files)
        self.tracker.log_point(row)
        self.display.finished(cell, point, row)

    def _give_up(
        self, cell: Cell, points: Sequence[Point], status: Status, reason: str, log: str = ""
    ) -> list[ResultRow]:
        rows = [cell.row(point, status, reason) for point in points]
        for point, row in zip(points, rows, strict=True):
            self._keep(cell, point, row, [], {"driver": driver_machine()}, log)
        return rows


def _last_words(instance: RemoteInstance) -> str:
    try:
        return instance.new_log()
    except InstanceError as error:
        return f"(the log could not be read: {error})"


__all__ = ["ClusterError", "Sweep"]
