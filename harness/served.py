"""One cell that serves: its instance is brought up, its points are driven, and what may pass is tried again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harness.cluster import Cluster, LoadgenError, NoRoom, PointEnd, RemoteInstance, RemoteLoadgen
from harness.experiment import Cell, Point
from harness.instances import InstanceError
from harness.lease import Lease
from harness.loadgen.point import PointLoad, Seen
from harness.loads import point_loads, point_row, prompt_source
from harness.patience import Check, Deadline, OutOfTime, Patience, Tries, may_pass
from harness.recorder import Recorder
from harness.records import RequestRecord, ServerStats, Status
from harness.write_behind import WriteBehind
from workloads import Source


@dataclass(slots=True)
class _Broken:
    """Why an instance is of no more use, and what it said last."""

    error: Exception
    env: dict[str, Any] = field(default_factory=dict)
    log: str = ""


class ServedCell:
    """Runs the pending points of a cell, on as many instances one after another as it takes.

    A point is concluded and written while the next one is warmed up, never while one is measured.

    beside: ids of the cells that ran on the same cluster since it was last called; None where a cell owns its nodes.
    """

    def __init__(
        self,
        cell: Cell,
        cluster: Cluster,
        loadgen: Lease[RemoteLoadgen],
        recorder: Recorder,
        patience: Patience,
        beside: Callable[[], list[str]] | None = None,
    ):
        self._cell, self._cluster, self._loadgen = cell, cluster, loadgen
        self._recorder, self._patience, self._beside = recorder, patience, beside
        self._left = list(cell.points)
        self._deadline: Deadline = patience.cell()
        self._tries: Tries = patience.tries()
        self._failed: list[str] = []  # nodes an instance was lost on
        self._env: dict[str, Any] = {}  # of the running instance
        self._is_open = False  # the tracker's run
        self._behind = WriteBehind()

    def run(self) -> None:
        """Every pending point has a row afterwards, unless the budget is spent. Raises NoRoom where nothing of this
        run has had room so far, and Stopped."""
        self._recorder.display.starting(self._cell)
        try:
            source = prompt_source(self._cell.config)
        except ValueError as error:  # no such files
            with self._recorder.cell(self._cell):
                self._give_up(_Broken(error))
            return
        with ExitStack() as opened, self._behind:
            while self._left and not self._patience.spent:
                broken = self._one_instance(source, opened)
                if broken and self._tries.again(broken.error):
                    self._say_again(broken.error)
                    self._patience.pause(len(self._tries.failures))
                elif broken:
                    self._give_up(broken)

    def _one_instance(self, source: Source, opened: ExitStack) -> _Broken | None:
        """Bring an instance up and drive points until all are done, or it breaks. `opened` holds the tracker's run,
        which is opened while the first instance starts and closed after the last one has ended."""
        check = self._patience.until(self._deadline)
        try:
            self._loadgen.get()  # before the instance takes whole nodes
            with self._cluster.instance(self._cell.config, self._failed, check) as instance:
                self._open(opened)
                return self._drive(instance, source, check)
        except (NoRoom, OutOfTime) as error:
            if isinstance(error, NoRoom) and not self._cluster.has_placed:
                raise
            self._open(opened)
            return _Broken(error)

    def _open(self, opened: ExitStack) -> None:
        if not self._is_open:
            opened.enter_context(self._recorder.cell(self._cell))
            self._is_open = True

    def _drive(self, instance: RemoteInstance, source: Source, check: Check) -> _Broken | None:
        try:
            self._start_and_drive(instance, source, check)
        except NoRoom as error:  # for another load generator, beside an instance that owns its nodes
            return _Broken(LoadgenError(str(error), may_pass=True))
        except (InstanceError, LoadgenError, OutOfTime) as error:  # it did not start, or its server is gone
            if may_pass(error):
                self._failed += instance.nodes
            return _Broken(error, {"instance": {"nodes": _nodes(instance)}}, instance.new_log())
        return None

    def _start_and_drive(self, instance: RemoteInstance, source: Source, check: Check) -> None:
        instance.wait_started(check)
        self._env = {"instance": instance.describe()}
        while self._left and not self._patience.spent:
            check()
            instance.check_others()
            self._point(self._left[0], source, instance)

    def _point(self, point: Point, source: Source, instance: RemoteInstance) -> None:
        """Warm up, flush, measure, write; once more where the load generator was lost. Raises InstanceError where the
        instance was lost and another may do better, OutOfTime for the whole cell."""
        self._recorder.display.running(self._cell, point, 0, 0, 0.0)
        if self._beside:
            self._beside()  # what was before this point
        while True:
            try:
                self._measure(point, source, instance)
                return
            except LoadgenError as error:
                self._loadgen.drop()
                if not self._tries.again(error):
                    self._fail(point, error, instance)
                    return
                self._say_again(error)
                self._patience.pause(len(self._tries.failures))
                self._loadgen.get()
            except OutOfTime as error:
                self._loadgen.drop()  # it drives on otherwise
                if error.whole_cell:
                    raise
                self._fail(point, error, instance)
                return

    def _measure(self, point: Point, source: Source, instance: RemoteInstance) -> None:
        cell, check = self._cell, self._patience.until(self._deadline, self._patience.point())
        seen: Seen | None = None
        try:
            measured, warmup = point_loads(cell.config, point, source, instance.url)
        except ValueError as error:  # too little text for the prompts
            self._fail(point, error, instance)
            return
        try:
            loadgen = self._loadgen.get()
            self._warm_up(warmup, loadgen, instance, check)
            before = instance.begin_point()
            self._behind.wait()  # nothing of ours runs beside what is measured
            seen = loadgen.run(measured, lambda *now: self._progress(point, instance, check, *now))
            end = instance.end_point(with_trace=cell.config.trace.record)
            env = {"loadgen": loadgen.describe(), **self._env, **self._scheduling()}
        except InstanceError as error:
            if may_pass(error) and self._tries.number < self._tries.most:
                raise
            self._fail(point, error, instance, seen.result().requests if seen else [])
            return
        self._done(point)
        self._behind.start(partial(self._keep, point, seen, end, end.stats.since(before), env))
        self._tries = self._patience.tries()

    def _warm_up(
        self, warmup: PointLoad | None, loadgen: RemoteLoadgen, instance: RemoteInstance, check: Check
    ) -> None:
        failure = loadgen.run(warmup, lambda *_: check()).failure if warmup else None
        if failure:
            instance.check()
            raise InstanceError(f"warm-up failed: {failure}")

    def _keep(self, point: Point, seen: Seen, end: PointEnd, share: ServerStats, env: dict[str, Any]) -> None:
        """In the thread of `WriteBehind`: everything it needs is given, since the cell goes on meanwhile."""
        result = seen.result()
        if result.reader:  # else nothing was read
            env = env | {"loadgen": env["loadgen"] | {"reader": result.reader}}
        row = point_row(self._cell, point, result, share)
        files = {"selections.trace": end.selection_trace} if end.selection_trace else {}
        self._recorder.keep(self._cell, point, row, result.requests, env=env, log=end.log, files=files)

    def _progress(
        self, point: Point, instance: RemoteInstance, check: Check, done: int, tokens: int, seconds: float
    ) -> None:
        check()
        try:
            instance.check_others()
        except InstanceError:
            self._loadgen.drop()  # it waits for answers that will not come
            raise
        self._recorder.display.running(self._cell, point, done, tokens, seconds)

    def _fail(
        self, point: Point, error: Exception, instance: RemoteInstance, requests: list[RequestRecord] | None = None
    ) -> None:
        self._done(point)
        row = self._cell.row(point, Status.FAILED, self._tries.note(error))
        env, log = self._env | self._scheduling(), instance.new_log()
        self._behind.wait()
        self._recorder.keep(self._cell, point, row, requests or [], env=env, log=log)
        self._tries = self._patience.tries()

    def _give_up(self, broken: _Broken) -> None:
        """A row for everything that is left."""
        points, self._left = self._left, []
        env = broken.env | (self._scheduling() if self._is_open else {})
        reason = self._tries.note(broken.error)
        self._behind.wait()
        self._recorder.give_up(self._cell, points, Status.FAILED, reason, env=env, log=broken.log)

    def _done(self, point: Point) -> None:
        self._left.remove(point)

    def _scheduling(self) -> dict[str, Any]:
        """For `env.json`: how many tries it took, and who else was there."""
        beside = {} if self._beside is None else {"beside": sorted(self._beside())}
        said = {"exclusive": self._beside is None, **beside, "tries": self._tries.number}
        return {"scheduling": said | ({"failures": list(self._tries.failures)} if self._tries.failures else {})}

    def _say_again(self, error: Exception) -> None:
        wait_s = self._patience.pause_s(len(self._tries.failures))
        self._recorder.display.trying_again(self._cell, error, self._tries, wait_s)


def _nodes(instance: RemoteInstance) -> list[dict[str, Any]]:
    try:
        return instance.checked_nodes()
    except InstanceError as error:
        return [{"node_id": name, "lost": str(error)} for name in instance.nodes]
