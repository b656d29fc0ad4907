"""An instance over several nodes while it starts, on stand-ins for Ray's actors: who is asked what, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from harness.actors import InstanceActor
from harness.cluster import RemoteInstance
from harness.cluster import calls as module
from harness.config import load_cells
from harness.instances import InstanceError
from harness.instances.own_server import OwnServer

LATE_S = 30.0  # nothing waits that long unless something is wrong


class Remote:
    """A method of an actor, run in a thread of its own as Ray does."""

    def __init__(self, method: Callable[..., Any]):
        self._method = method

    def remote(self, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        threading.Thread(target=lambda: future.set_result(self._method(*args)), daemon=True).start()
        return future


class Server(OwnServer):
    """`start` returns when `may_start` is set, with what it is to say."""

    def __init__(self) -> None:
        super().__init__()
        self.may_start = threading.Event()
        self.fails_start: InstanceError | None = None
        self.fails_check: InstanceError | None = None
        self.looks = 0

    def start(self, place: Any) -> str:
        assert self.may_start.wait(LATE_S)
        self._process: Any = SimpleNamespace(read_log=lambda offset: ("said", offset + 4))
        if self.fails_start:
            raise self.fails_start
        return "" if place.node_rank else "http://leader"

    def check(self) -> None:
        self.looks += 1
        self._running()
        if self.fails_check:
            raise self.fails_check


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made = [Server(), Server()]
    yield made
    for server in made:
        server.may_start.set()


@pytest.fixture
def instance(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> RemoteInstance:
    def ray_wait(references: list[Future[Any]], timeout: float) -> tuple[list[Any], list[Any]]:
        done, left = wait(references, timeout, FIRST_COMPLETED)
        return list(done), list(left)

    monkeypatch.setattr(ray, "get", lambda reference, timeout: reference.result(timeout))
    monkeypatch.setattr(ray, "wait", ray_wait)
    monkeypatch.setattr(module, "POLL_S", 0.01)
    nodes = tuple(SimpleNamespace(id=f"node{rank}", address="127.0.0.1") for rank in range(2))
    return RemoteInstance([actor_of(server) for server in servers], SimpleNamespace(nodes=nodes), LATE_S)  # type: ignore[arg-type]


def actor_of(server: Server) -> Any:
    config = load_cells(["experiment=quickstart", "offload=full_kv", "engine=native"])[0]
    actor = InstanceActor(config, False)
    actor._instance = server  # type: ignore[assignment]
    methods = {"start": actor.start, "call": actor.call, "meeting_point": lambda address: f"{address}:5000"}
    return SimpleNamespace(**{name: Remote(method) for name, method in methods.items()})


class Looks:
    """A `Check` that does something on its n-th call."""

    def __init__(self, number: int, then: Callable[[], None]):
        self.left, self._then = number, then

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self._then()


def test_a_node_that_is_still_to_start_its_process_is_waited_for(
    instance: RemoteInstance, servers: list[Server]
) -> None:
    leader, other = servers

    def let_both() -> None:
        assert other.looks == 0  # there is nothing to look at yet
        other.may_start.set()
        leader.may_start.set()

    assert instance.wait_started(Looks(3, let_both)) == "http://leader"


def test_one_that_dies_while_the_leader_starts_ends_the_wait(instance: RemoteInstance, servers: list[Server]) -> None:
    _, other = servers
    other.fails_check = InstanceError("rank 1 has no cores")
    other.may_start.set()
    with pytest.raises(InstanceError, match="^rank 1 has no cores$") as caught:
        instance.wait_started()
    assert not caught.value.may_pass


@pytest.mark.parametrize("passing", [False, True])
def test_what_another_node_says_is_the_cause_where_the_leader_only_lost_it(
    instance: RemoteInstance, servers: list[Server], passing: bool
) -> None:
    leader, other = servers
    leader.fails_start = InstanceError("connection closed by peer", may_pass=True)

    def both_end() -> None:
        other.fails_check = InstanceError("rank 1 has no cores", may_pass=passing)
        leader.may_start.set()

    other.may_start.set()
    with pytest.raises(InstanceError) as caught:
        instance.wait_started(Looks(3, both_end))
    assert caught.value.may_pass == passing
    assert passing or str(caught.value) == "rank 1 has no cores"


def test_the_log_of_one_that_never_started_is_empty_and_hides_no_other(
    instance: RemoteInstance, servers: list[Server]
) -> None:
    servers[0].may_start.set()
    assert instance.wait_started() == "http://leader"
    assert instance.new_log() == "--- node rank 0\nsaid\n--- node rank 1\n"
