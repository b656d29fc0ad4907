"""Ray: where instances and load generators run. The only importer of ray.

`Cluster` starts a local Ray for the run, or joins an existing one, and hands out actors in placement groups
that fit what the config asks for. Leaving it ends every actor it started, on success, failure or Ctrl-C.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from harness.actors import InstanceActor, LoadgenActor, OfflineActor
from harness.guard import killed_with_us
from harness.instances import InstanceError
from harness.interrupts import rearm, shielded
from harness.loadgen.point import PointLoad, PointResult
from harness.loadgen.together import run_together
from harness.offline import Measurement, OfflineError
from harness.records import ServerStats
from harness.schema import ClusterConfig, Config, Device
from harness.sysinfo import boot_id

POLL_S = 0.5
CALL_TIMEOUT_S = 60.0
TRACE_TIMEOUT_S = 1000.0
STOP_TIMEOUT_S = 15.0
REACH_TIMEOUT_S = 5.0
MOST_TIMES_OVER = 8  # a local Ray may be promised more cores than there are, up to this
LONGEST_TEMP_DIR = 36
_PACKAGES = ("harness", "workloads", "hisparse_kernels")  # what a worker of an existing cluster is given of ours


class ClusterError(RuntimeError):
    """The cluster cannot be reached or cannot give what was asked. The message is one line."""


class LoadgenError(RuntimeError):
    """The load generator died or failed; there is another one for the next point. The message is one line."""


class RemoteInstance:
    """An `instances.Instance` by Ray calls; it is being started from the moment this is made."""

    def __init__(self, actor: Any, group: str, start_timeout_s: float):
        self._actor, self._group = actor, group
        self._timeout_s = start_timeout_s + CALL_TIMEOUT_S
        self._start = actor.call.remote("start")
        self._log_end = 0
        self.url = ""

    def wait_started(self) -> str:
        """The base URL, once it serves. Raises InstanceError when it does not start."""
        self.url = str(_answer(self._start, "start", self._timeout_s))
        return self.url

    def check(self) -> None:
        _call(self._actor, "check")

    def flush(self) -> None:
        _call(self._actor, "flush")

    def stats(self) -> ServerStats:
        stats = _call(self._actor, "stats")
        assert isinstance(stats, ServerStats)
        return stats

    def selection_trace(self) -> bytes:
        """The trace of the point's selections, where the config asks for one (`trace.record`)."""
        return bytes(_call(self._actor, "selection_trace", timeout_s=TRACE_TIMEOUT_S))

    def new_log(self) -> str:
        """What the server logged since the last call."""
        text, self._log_end = _call(self._actor, "read_log", self._log_end)
        return str(text)

    def describe(self) -> dict[str, Any]:
        """What the instance says of itself, and the process and the placement group of its actor."""
        process = _result(self._actor.process.remote(), "process", CALL_TIMEOUT_S)
        return {**_call(self._actor, "describe"), "actor": {**process, "placement_group": self._group}}

    def stop(self) -> None:
        """End the server in order; where its actor is gone, the server ends with its standard input."""
        try:
            _call(self._actor, "stop", timeout_s=STOP_TIMEOUT_S)
        except InstanceError as error:
            print(f"stopping an instance: {error}")


class RemoteLoadgen:
    """A load generator in one process or several of their own, which Ray replaces when they die."""

    def __init__(self, actors: Sequence[Any], group: str):
        self._actors, self._group = actors, group

    def run(self, load: PointLoad, on_progress: Callable[[int, int, float], None] | None = None) -> PointResult:
        """Drive one point. `on_progress` is given requests done, tokens (about) and seconds, now and then.

        Raises LoadgenError when one of the load generator's processes dies or fails.
        """
        with _as_loadgen_error():
            return run_together(load, [_Worker(actor) for actor in self._actors], boot_id(), on_progress)

    def describe(self) -> dict[str, Any]:
        """The machine it runs on, and the process and the placement group of its actor; `more` processes likewise.

        Raises LoadgenError.
        """
        import ray

        with _as_loadgen_error():
            first, *more = ray.get([actor.describe.remote() for actor in self._actors], timeout=CALL_TIMEOUT_S)
        found = {**first, "actor": {**first["actor"], "placement_group": self._group}}
        return found | {"more": more} if more else found


class _Worker:
    """An actor as `harness.loadgen.together` calls it."""

    def __init__(self, actor: Any):
        self._actor = actor

    def call(self, method: str, *args: Any) -> Future[Any]:
        return getattr(self._actor, method).remote(*args).future()


class RemoteOffline:
    """What measures cells in place, in a process of its own, which Ray replaces when it dies."""

    def __init__(self, actor: Any, group: str):
        self._actor, self._group = actor, group

    def measure(self, config: Config, concurrency: int, repeat: int) -> Measurement:
        """One point. Raises OfflineError when they cannot be made or their process dies."""
        import ray

        reference = self._actor.measure.remote(config, concurrency, repeat)
        try:
            while not ray.wait([reference], timeout=POLL_S)[0]:
                pass  # in short waits, so that a signal is heard
            outcome, value = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise OfflineError(f"the measurement failed: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            raise OfflineError(f"the measurement's process died: {_first_line(error)}") from error
        if outcome == "error":
            raise OfflineError(value)
        assert isinstance(value, Measurement)
        return value

    def describe(self) -> dict[str, Any]:
        """The machine it runs on, and the process and the placement group of its actor. Raises OfflineError."""
        import ray

        try:
            own = dict(ray.get(self._actor.describe.remote(), timeout=CALL_TIMEOUT_S))
        except ray.exceptions.RayError as error:
            raise OfflineError(f"the measurement's process died: {_first_line(error)}") from error
        return {**own, "actor": {**own["actor"], "placement_group": self._group}}


class Cluster:
    """A connected cluster: `with Cluster.open(config, instance_cpus) as cluster:`; one at a time in a process."""

    def __init__(self, config: ClusterConfig):
        self._config = config

    @classmethod
    @contextmanager
    def open(cls, config: ClusterConfig, instance_cpus: float, load_processes: int = 1) -> Iterator[Cluster]:
        """A local Ray with room for one instance and the load generator, or an existing one. Raises ClusterError."""
        try:
            _connect(config.address, instance_cpus + config.loadgen_cpus * load_processes)
            with killed_with_us(_local_agents()):
                yield cls(config)
        finally:
            with shielded():
                _ray().shutdown()

    @contextmanager
    def loadgen(self, processes: int = 1) -> Iterator[RemoteLoadgen]:
        """A load generator of so many processes for the whole experiment, spread over the nodes."""
        bundle = {"CPU": self._config.loadgen_cpus}
        with self._actors(LoadgenActor, [bundle] * processes, max_restarts=-1) as (actors, group):
            yield RemoteLoadgen(actors, group)

    @contextmanager
    def instance(self, config: Config) -> Iterator[RemoteInstance]:
        """An instance that is starting; see `wait_started`. Raises ClusterError without room for it."""
        with self._actor(InstanceActor, _bundle(config), config) as (actor, group):
            instance = RemoteInstance(actor, group, config.engine.start_timeout_s)
            try:
                yield instance
            finally:
                with shielded():
                    instance.stop()

    @contextmanager
    def offline(self, config: Config) -> Iterator[RemoteOffline]:
        """A process with the cell's resources to measure in. Raises ClusterError without room for it."""
        with self._actor(OfflineActor, _bundle(config), max_restarts=-1) as (actor, group):
            yield RemoteOffline(actor, group)

    @contextmanager
    def _actor(
        self, kind: type, bundle: dict[str, float], *args: Any, max_restarts: int = 0
    ) -> Iterator[tuple[Any, str]]:
        """An actor alone in a placement group, and that group's id."""
        with self._actors(kind, [bundle], *args, max_restarts=max_restarts) as (actors, group):
            yield actors[0], group

    @contextmanager
    def _actors(
        self, kind: type, bundles: list[dict[str, float]], *args: Any, max_restarts: int = 0
    ) -> Iterator[tuple[list[Any], str]]:
        """An actor for each bundle of one placement group, and that group's id."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        alone = self._config.address is None  # a machine's own Ray gets no GPU later
        if alone and "GPU" in bundles[0] and ray.cluster_resources().get("GPU", 0) < 1:
            raise ClusterError("platform.device=cuda needs a GPU, and Ray finds none here: choose platform=cpu")
        group = placement_group(bundles, strategy="PACK" if len(bundles) == 1 else "SPREAD")
        try:
            if not group.wait(self._config.ready_timeout_s):
                have = {k: v for k, v in ray.cluster_resources().items() if k in bundles[0]}
                wanted = f"{len(bundles)} times {bundles[0]}" if len(bundles) > 1 else bundles[0]
                raise ClusterError(
                    f"no node has room for {wanted} within {self._config.ready_timeout_s:.0f} s "
                    f"(the whole cluster has {have}); lower platform.num_cpus or cluster.loadgen_cpus"
                )
            actors = [
                ray.remote(kind)
                .options(
                    num_cpus=bundle["CPU"],
                    num_gpus=bundle.get("GPU", 0),
                    max_concurrency=2,
                    max_restarts=max_restarts,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
                )
                .remote(*args)
                for index, bundle in enumerate(bundles)
            ]
            try:
                yield actors, group.id.hex()
            finally:
                with shielded():
                    for actor in actors:
                        ray.kill(actor)
        finally:
            with shielded():
                remove_placement_group(group)


def _bundle(config: Config) -> dict[str, float]:
    """The resources of one cell."""
    bundle: dict[str, float] = {"CPU": config.platform.num_cpus}
    if config.platform.memory is not None:
        bundle["memory"] = float(config.platform.memory)
    if config.platform.device is Device.cuda:
        bundle["GPU"] = 1.0
    return bundle


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its new default, without the warning
    import ray

    return ray


def _connect(address: str | None, needed_cpus: float) -> None:
    try:
        if address is None:
            with shielded():  # Ray is not made to be interrupted while it starts
                _start_local(needed_cpus)
        else:
            _join(address)
            rearm()
    except (ValueError, RuntimeError, OSError) as error:
        if address is None:
            raise ClusterError(f"a local Ray did not start: {_first_line(error)}") from error
        hint = "set RAY_AUTH_MODE=token if it asks for one, or cluster.address=null for a local Ray"
        raise ClusterError(f"cluster.address={address}: {_first_line(error)}; {hint}") from error
    except SystemExit as error:  # what Ray makes of a SIGTERM while it connects
        raise KeyboardInterrupt from error


def _start_local(needed_cpus: float) -> None:
    """A Ray of this machine's own, on loopback only, its workers at the priority of any other process.

    A machine with fewer cores than asked for runs all the same, more slowly; ValueError far beyond that.
    """
    cores = os.cpu_count() or 1
    if needed_cpus > MOST_TIMES_OVER * cores:
        raise ValueError(f"{needed_cpus:g} CPUs asked for, this machine has {cores}: lower platform.num_cpus")
    # Without this, whose name fits other systems, Ray listens on every interface. It is read at Ray's import.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else servers and clients run at 15, behind everything
    with _apart():
        _ray().init(
            address="local",
            _node_ip_address="127.0.0.1",
            num_cpus=int(max(cores, -(-needed_cpus // 1))),
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=False,
            logging_level="error",
            # None: RAY_TMPDIR or TMPDIR; Ray's sockets lie below it, and a socket's path is at most 107 bytes
            _temp_dir="/tmp/ray" if len(tempfile.gettempdir()) > LONGEST_TEMP_DIR else None,
        )


@contextmanager
def _apart() -> Iterator[None]:
    """Have what Ray starts in process groups of their own: a signal to ours (`timeout`, a closed terminal) is for us to
    answer, and an orderly end needs a Ray that is still there.
    """
    from ray._private import services

    popen = services.ConsolePopen
    services.ConsolePopen = functools.partial(popen, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = popen


def _join(address: str) -> None:
    """Connect to an existing cluster. Its workers get the code this process runs, whatever is installed there."""
    named = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    parts = urlsplit(named if "://" in named else f"gcs://{named}")
    if parts.hostname and parts.port:  # say at once where nobody listens: Ray would try for minutes
        socket.create_connection((parts.hostname, parts.port), timeout=REACH_TIMEOUT_S).close()
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")  # not a line for each try to connect
    modules = [str(Path(importlib.import_module(name).__path__[0])) for name in _PACKAGES]
    _ray().init(address=address, runtime_env={"py_modules": modules}, log_to_driver=False, logging_level="error")


def _local_agents() -> list[int]:
    """Helpers of a local Ray that go on for a minute when it is killed with this process. None of a joined one's."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith(("ray::DashboardA", "ray::RuntimeEnv")):
                found.append(process.pid)
    return found


def _call(actor: Any, method: str, *args: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    return _answer(actor.call.remote(method, *args), method, timeout_s)


def _answer(reference: Any, method: str, timeout_s: float) -> Any:
    outcome, value = _result(reference, method, timeout_s)
    if outcome == "error":
        raise InstanceError(value)
    return value


def _result(reference: Any, method: str, timeout_s: float) -> Any:
    import ray

    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        raise InstanceError(f"the instance did not answer {method} within {timeout_s:.0f} s") from error
    except ray.exceptions.RayTaskError as error:
        raise InstanceError(f"{method} failed: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        raise InstanceError(f"the instance's actor is gone: {_first_line(error)}") from error


@contextmanager
def _as_loadgen_error() -> Iterator[None]:
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise LoadgenError(f"the load generator failed: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        raise LoadgenError(f"the load generator died: {_first_line(error)}") from error
    except TimeoutError as error:
        raise LoadgenError("the load generator does not answer") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
