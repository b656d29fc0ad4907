"""What runs in the cluster's actors: plain classes that know nothing of Ray. See `harness.cluster`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import Future
from typing import Any

from harness.instances import Instance, InstanceError, Place, make_instance
from harness.instances.base import meeting_point
from harness.loadgen.loop import run_on_own_loop
from harness.loadgen.point import Driven, PointLoad
from harness.loadgen.progress import Progress
from harness.loadgen.run import drive
from harness.node_check import check_node, refusal
from harness.offline import OfflineError, measure
from harness.placement import accelerators_of
from harness.schema import Config, EngineKind
from harness.sysinfo import boot_id, own_machine


class InstanceActor:
    """Holds an instance's part on one node, in a process of its own on the node its bundle lies on.

    Three threads: `stop` and `read_log` need not wait for a `start` that takes long.
    """

    def __init__(self, config: Config, cores_matter: bool):
        self._config = config
        self._instance: Instance = make_instance(config)
        self._node = NodeCheck(config, cores_matter)

    def start(self, place: Place) -> Any:
        """Start it where the node is what the config says: as `call`."""
        if said := self._node.refusal():
            return "error", (said, False)
        return self.call("start", place)

    def call(self, method: str, *args: Any) -> Any:
        """A method of the instance: ("ok", its result), or ("error", message and may_pass of its InstanceError)."""
        try:
            return "ok", getattr(self._instance, method)(*args)
        except InstanceError as error:
            return "error", (str(error), error.may_pass)

    def call_each(self, *calls: tuple[Any, ...]) -> Any:
        """Several methods of the instance, each with its arguments, in one round trip: as `call`, with all results.

        None is called after one that raises.
        """
        results = []
        for method, *args in calls:
            outcome, value = self.call(method, *args)
            if outcome == "error":
                return outcome, value
            results.append(value)
        return "ok", results

    def meeting_point(self, node_address: str | None) -> str:
        """Asked of the first node's actor, where an instance spans several: see `instances.base.Place`."""
        return meeting_point(node_address)

    def node(self) -> dict[str, Any]:
        """The node and what of it is not as configured (`harness.node_check`), and this process."""
        return {**self._node.found(), "actor": own_process()}


class NodeCheck:
    """The node of this process against a cell's config, looked at once."""

    def __init__(self, config: Config, cores_matter: bool):
        self._config, self._cores_matter = config, cores_matter
        self._found: dict[str, Any] | None = None

    def found(self) -> dict[str, Any]:
        if self._found is None:
            visible, devices = os.environ.get("CUDA_VISIBLE_DEVICES"), accelerators_of(self._config)
            self._found = check_node(self._config, own_machine(), visible, devices, self._cores_matter)
        return self._found

    def refusal(self) -> str | None:
        """Why the cell must not be measured here; an external server's machine is another one."""
        return None if self._config.engine.kind is EngineKind.external else refusal(self._config, self.found())


class LoadgenActor:
    """Drives points, or its share of them. `drive` and one of the others are called side by side (two threads).

    Where several drive one point together, `arm` comes first and each waits within `drive` until it is told to `begin`.
    """

    def __init__(self) -> None:
        self.arm()

    def arm(self) -> None:
        """Forget the last point."""
        self._progress: Progress | None = None
        self._is_prepared = threading.Event()
        self._start: Future[float | None] = Future()

    def drive(self, load: PointLoad, together: bool) -> Driven:
        async def wait_for_start() -> float | None:  # no method: one coroutine of an actor's makes all of them so
            self._is_prepared.set()
            return await asyncio.wrap_future(self._start)

        self._progress = None
        try:
            return run_on_own_loop(drive(load, self._note, wait_for_start if together else None))
        finally:
            self._is_prepared.set()

    def prepared(self) -> None:
        """Returns once `drive` waits for `begin`, or has ended."""
        self._is_prepared.wait()

    def begin(self, at_s: float | None) -> None:
        """The time.time() of this machine at which to begin; None: not at all."""
        self._start.set_result(at_s)

    def clock(self) -> tuple[str, float]:
        """Which machine's clock this is, and what it shows."""
        return boot_id(), time.time()

    def progress(self) -> tuple[int, int, float]:
        """Requests done, streamed events (about one a token), seconds since the measured part began."""
        now = self._progress
        return (now.done, now.events, now.elapsed_s) if now else (0, 0, 0.0)

    def describe(self) -> dict[str, Any]:
        return {"machine": own_machine(), "actor": own_process()}

    def _note(self, progress: Progress) -> None:
        self._progress = progress


class OfflineActor:
    """Measures cells that serve nothing, in a process of its own; they are alike in their platform."""

    def __init__(self, config: Config, cores_matter: bool):
        self._node = NodeCheck(config, cores_matter)

    def measure(self, config: Config, concurrency: int, repeat: int) -> tuple[str, Any]:
        """("ok", the point's Measurement), or ("error", the OfflineError's message)."""
        if said := self._node.refusal():
            return "error", said
        try:
            return "ok", measure(config, concurrency, repeat)
        except OfflineError as error:
            return "error", str(error)

    def describe(self) -> dict[str, Any]:
        return {"machine": own_machine(), "actor": own_process(), "node": self._node.found()}


def own_process() -> dict[str, int]:
    """Number and niceness of the process this runs in."""
    return {"pid": os.getpid(), "nice": os.nice(0)}
