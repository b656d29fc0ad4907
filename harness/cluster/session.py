"""A connected cluster, which gives out instances, load generators and measuring processes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from harness.actors import InstanceActor, LoadgenActor, OfflineActor
from harness.cluster.connect import connect, disconnect, local_agents
from harness.cluster.errors import ClusterError
from harness.cluster.groups import Places, ending
from harness.cluster.instance import RemoteInstance
from harness.cluster.loadgen import RemoteLoadgen
from harness.cluster.offline import RemoteOffline
from harness.guard import killed_with_us
from harness.interrupts import shielded
from harness.patience import Check
from harness.placement import Ask, Wishes, ask_of, fit_together, loadgen_nodes
from harness.schema import ClusterConfig, Config, EngineConfig, EngineKind

LOOPBACK = EngineConfig().host


def _never() -> None:
    """A check that waits for as long as it takes."""


class Cluster:
    """`with Cluster.open(...) as cluster:`; one at a time in a process. Several threads may call its methods."""

    def __init__(self, config: ClusterConfig):
        self._config = config
        self._places = Places(config.ready_timeout_s)
        self._lock = threading.Lock()
        self._loaded: list[str] = []  # nodes with a load generator
        self._warm: dict[str, tuple[str, ...]] = {}  # model -> nodes that read its weights last
        self.has_placed = False
        """Whether any instance got its nodes."""

    @classmethod
    @contextmanager
    def open(cls, config: ClusterConfig, instance_cpus: float, load_processes: int = 1) -> Iterator[Cluster]:
        """A local Ray with room for one instance and the load generator, or an existing one. Raises ClusterError."""
        try:
            connect(config.address, instance_cpus + config.loadgen_cpus * load_processes)
            with killed_with_us(local_agents()):
                yield cls(config)
        finally:
            disconnect()

    @contextmanager
    def loadgen(
        self, processes: int = 1, cells: Sequence[Config] = (), check: Check = _never
    ) -> Iterator[RemoteLoadgen]:
        """A load generator of so many processes, on nodes that leave enough others for any one of the cells.

        Raises NoRoom.
        """
        each = {"CPU": self._config.loadgen_cpus}
        among = loadgen_nodes(self._places.nodes(), each, processes, [ask_of(cell) for cell in cells])
        with self._places.spread(each, processes, among, check) as groups:
            actors = [group.start(LoadgenActor, 0) for group in groups]
            nodes = [group.nodes[0].id for group in groups]
            with self._lock:
                self._loaded += nodes
            try:
                with ending(actors):
                    yield RemoteLoadgen(actors, groups)
            finally:
                with self._lock:
                    for name in nodes:
                        self._loaded.remove(name)

    @contextmanager
    def instance(self, config: Config, failed: Collection[str] = (), check: Check = _never) -> Iterator[RemoteInstance]:
        """An instance that is starting; see `wait_started`. failed: nodes on which the cell broke before.

        Raises NoRoom, and what `check` raises.
        """
        ask = ask_of(config)
        self._refuse_without_gpu(ask)
        owns = self._config.exclusive and not self._is_local and config.engine.kind is not EngineKind.external
        with self._lock:
            wishes = Wishes(tuple(failed), tuple(self._loaded), self._warm.get(_weights(config), ()))
        with self._places.group(ask, wishes, alone=owns, check=check) as group:
            self.has_placed = True
            with self._lock:
                self._warm[_weights(config)] = tuple(node.id for node in group.nodes)
            reachable = [_reachable(config, node.address) for node in group.nodes]
            actors = [group.start(InstanceActor, i, own, not self._is_local) for i, own in enumerate(reachable)]
            with ending(actors):
                instance = RemoteInstance(actors, group, config.engine.start_timeout_s)
                try:
                    yield instance
                finally:
                    with shielded():
                        instance.stop()

    @contextmanager
    def offline(self, config: Config, failed: Collection[str] = (), check: Check = _never) -> Iterator[RemoteOffline]:
        """A process with the cell's resources to measure in. Raises NoRoom, and what `check` raises."""
        ask = ask_of(config)
        self._refuse_without_gpu(ask)
        owns = self._config.exclusive and not self._is_local
        with self._places.group(ask, Wishes(tuple(failed)), alone=owns, check=check) as group:
            self.has_placed = True
            actor = group.start(OfflineActor, 0, config, not self._is_local)
            with ending([actor]):
                yield RemoteOffline(actor, group)

    def fits_beside(self, running: Sequence[Config], another: Config) -> bool:
        """Whether another cell fits on the cluster while those run, each with a load generator of its own."""
        asks = []
        for config in (*running, another):
            asks += [ask_of(config), *[Ask({"CPU": self._config.loadgen_cpus})] * config.load.processes]
        return fit_together(self._places.nodes(), asks)

    @property
    def _is_local(self) -> bool:
        return self._config.address is None

    def _refuse_without_gpu(self, ask: Ask) -> None:
        """A machine's own Ray gets no GPU later."""
        if self._is_local and "GPU" in ask.each and not any(node.total.get("GPU") for node in self._places.nodes()):
            raise ClusterError(f"the cell needs {ask}, and Ray finds no GPU here: choose platform=cpu")


def _weights(config: Config) -> str:
    return f"{config.model.name} {config.model.weights}"


def _reachable(config: Config, address: str) -> Config:
    """The config with a server that listens where other nodes reach it, unless it says where itself."""
    if config.engine.host != LOOPBACK or address == LOOPBACK:
        return config
    out = copy.deepcopy(config)
    out.engine.host = address
    return out
