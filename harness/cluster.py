"""Ray: where instances and load generators run. The only importer of ray.

`Cluster` starts a local Ray for the run, or joins an existing one, and hands out actors in placement groups
that fit what the config asks for. Leaving it ends every actor it started, on success, failure or Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from harness.instances import Instance, InstanceError, make_instance
from harness.loadgen.progress import Progress
from harness.loadgen.run import PointLoad, PointResult, run_point
from harness.records import ServerStats
from harness.schema import ClusterConfig, Config
from harness.sysinfo import machine

POLL_S = 0.5
CALL_TIMEOUT_S = 60.0


class ClusterError(RuntimeError):
    """The cluster cannot be reached or cannot give what was asked. The message is one line."""


class _InstanceActor:
    """Holds an instance in a process of its own, on the node its bundle lies on."""

    def __init__(self, config: Config):
        self._instance: Instance = make_instance(config)

    def call(self, method: str, *args: Any) -> Any:
        """A method of the instance; its InstanceError comes back as ("error", message), anything else as Ray's."""
        try:
            return "ok", getattr(self._instance, method)(*args)
        except InstanceError as error:
            return "error", str(error)


class _LoadgenActor:
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
        return machine()

    def _note(self, progress: Progress) -> None:
        self._progress = progress


class RemoteInstance:
    """A started instance: `instances.Instance` by Ray calls."""

    def __init__(self, actor: Any, url: str):
        self._actor = actor
        self.url = url

    def check(self) -> None:
        _call(self._actor, "check")

    def flush(self) -> None:
        _call(self._actor, "flush")

    def stats(self) -> ServerStats:
        stats = _call(self._actor, "stats")
        assert isinstance(stats, ServerStats)
        return stats

    def read_log(self, offset: int) -> tuple[str, int]:
        text, end = _call(self._actor, "read_log", offset)
        return str(text), int(end)

    def describe(self) -> dict[str, Any]:
        return dict(_call(self._actor, "describe"))


class RemoteLoadgen:
    """A load generator in a process of its own."""

    def __init__(self, actor: Any):
        self._actor = actor

    def run(self, load: PointLoad, on_progress: Callable[[int, int, float], None] | None = None) -> PointResult:
        """Drive one point. `on_progress` is given requests done, tokens (about) and seconds, now and then.

        Raises ClusterError when the load generator's process dies.
        """
        import ray

        reference = self._actor.run.remote(load)
        try:
            while not ray.wait([reference], timeout=POLL_S)[0]:
                if on_progress:
                    on_progress(*ray.get(self._actor.progress.remote(), timeout=CALL_TIMEOUT_S))
            result = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            raise ClusterError(f"the load generator died: {_first_line(error)}") from error
        except ray.exceptions.RayTaskError as error:
            raise ClusterError(f"the load generator failed: {error.cause!r}") from error
        assert isinstance(result, PointResult)
        return result

    def describe(self) -> dict[str, Any]:
        import ray

        return dict(ray.get(self._actor.describe.remote(), timeout=CALL_TIMEOUT_S))


class Cluster(AbstractContextManager["Cluster"]):
    """`with Cluster(config) as cluster:`; one at a time in a process."""

    def __init__(self, config: ClusterConfig, instance_cpus: float):
        self._config = config
        self._needed_cpus = instance_cpus + config.loadgen_cpus

    def __enter__(self) -> Cluster:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its new default, without the warning
        import ray

        try:
            if self._config.address is None:
                self._start_local()
            else:
                ray.init(address=self._config.address, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ClusterError(
                f"cluster.address={self._config.address}: {_first_line(error)}; cluster.address=null starts a local Ray"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()

    def _start_local(self) -> None:
        import ray

        # Loopback only; a machine with fewer cores than asked for runs all the same, more slowly.
        ray.init(
            address="local",
            _node_ip_address="127.0.0.1",
            num_cpus=int(max(os.cpu_count() or 1, -(-self._needed_cpus // 1))),
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=False,
            logging_level="error",
        )

    @contextmanager
    def loadgen(self) -> Iterator[RemoteLoadgen]:
        """A load generator for the whole experiment."""
        with self._actor(_LoadgenActor, {"CPU": self._config.loadgen_cpus}, max_concurrency=2) as actor:
            yield RemoteLoadgen(actor)

    @contextmanager
    def instance(self, config: Config) -> Iterator[RemoteInstance]:
        """A started instance. Raises InstanceError when it does not start, ClusterError without room for it."""
        bundle: dict[str, float] = {"CPU": config.platform.num_cpus}
        if config.platform.memory is not None:
            bundle["memory"] = float(config.platform.memory)
        with self._actor(_InstanceActor, bundle, config) as actor:
            try:
                url = _call(actor, "start", timeout_s=config.engine.start_timeout_s + CALL_TIMEOUT_S)
                yield RemoteInstance(actor, url)
            finally:
                _stop_quietly(actor)

    @contextmanager
    def _actor(self, kind: type, bundle: dict[str, float], *args: Any, max_concurrency: int = 1) -> Iterator[Any]:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([bundle], strategy="PACK")
        try:
            if not group.wait(self._config.ready_timeout_s):
                have = {k: v for k, v in ray.cluster_resources().items() if k in bundle}
                raise ClusterError(
                    f"no node has room for {bundle} within {self._config.ready_timeout_s:.0f} s "
                    f"(the whole cluster has {have}); lower platform.num_cpus or cluster.loadgen_cpus"
                )
            actor = (
                ray.remote(kind)
                .options(
                    num_cpus=bundle["CPU"],
                    max_concurrency=max_concurrency,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
                )
                .remote(*args)
            )
            try:
                yield actor
            finally:
                ray.kill(actor)
        finally:
            remove_placement_group(group)


def _call(actor: Any, method: str, *args: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    import ray

    try:
        outcome, value = ray.get(actor.call.remote(method, *args), timeout=timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        raise InstanceError(f"the instance did not answer {method} within {timeout_s:.0f} s") from error
    except ray.exceptions.RayActorError as error:
        raise InstanceError(f"the instance's actor died: {_first_line(error)}") from error
    except ray.exceptions.RayTaskError as error:
        raise InstanceError(f"{method} failed: {error.cause!r}") from error
    if outcome == "error":
        raise InstanceError(value)
    return value


def _stop_quietly(actor: Any) -> None:
    """End the server in order; when its actor is gone, the server ends with its standard input."""
    begin = time.monotonic()
    try:
        _call(actor, "stop", timeout_s=15.0)
    except InstanceError as error:
        print(f"stopping an instance: {error} (after {time.monotonic() - begin:.0f} s)")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
