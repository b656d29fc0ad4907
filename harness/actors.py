"""What runs in the cluster's actors: plain classes that know nothing of Ray. See `harness.cluster`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from harness.instances import Instance, InstanceError, make_instance
from harness.loadgen.progress import Progress
from harness.loadgen.run import PointLoad, PointResult, run_point
from harness.offline import OfflineError, measure
from harness.schema import Config
from harness.sysinfo import machine


class InstanceActor:
    """Holds an instance in a process of its own, on the node its bundle lies on.

    Two threads: `stop` and `read_log` need not wait for a `start` that takes long.
    """

    def __init__(self, config: Config):
        self._instance: Instance = make_instance(config)

    def call(self, method: str, *args: Any) -> Any:
        """A method of the instance: ("ok", its result), or ("error", its InstanceError's message)."""
        try:
            return "ok", getattr(self._instance, method)(*args)
        except InstanceError as error:
            return "error", str(error)

    def process(self) -> dict[str, int]:
        return own_process()


class LoadgenActor:
    """Drives points. `run` and `progress` are called side by side (two threads)."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def run(self, load: PointLoad) -> PointResult:
        self._progress = None
        return asyncio.run(run_point(load, self._note))

    def progress(self) -> tuple[int, int, float]:
        """Requests done, streamed events (about one a token), seconds since the measured part began."""
        now = self._progress
        return (now.done, now.events, now.elapsed_s) if now else (0, 0, 0.0)

    def describe(self) -> dict[str, Any]:
        return {"machine": machine(), "actor": own_process()}

    def _note(self, progress: Progress) -> None:
        self._progress = progress


class OfflineActor:
    """Measures cells that serve nothing, in a process of its own."""

    def measure(self, config: Config, concurrency: int, repeat: int) -> tuple[str, Any]:
        """("ok", the point's measures), or ("error", the OfflineError's message)."""
        try:
            return "ok", measure(config, concurrency, repeat)
        except OfflineError as error:
            return "error", str(error)

    def describe(self) -> dict[str, Any]:
        return {"machine": machine(), "actor": own_process()}


def own_process() -> dict[str, int]:
    """Number and niceness of the process this runs in."""
    return {"pid": os.getpid(), "nice": os.nice(0)}
