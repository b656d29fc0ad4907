"""Joins the cluster named on the command line and says, as JSON, where groups of bundles came to lie."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

from harness.actors import LoadgenActor
from harness.cluster import Cluster, NoRoom
from harness.cluster.groups import Group, ending
from harness.cluster.instance import RemoteInstance
from harness.config import load_cells
from harness.instances import InstanceError, Place
from harness.instances.base import meeting_point
from harness.placement import Ask, Wishes
from harness.schema import ClusterConfig

HANG_S = 300.0  # reached only by a hang


class SpanningActor:
    """An instance's part on one node, as `harness.actors.InstanceActor`: the first is ready once all have met it."""

    def __init__(self, dies: bool):
        self._dies = dies

    def start(self, place: Place) -> Any:
        assert place.dist_init_addr
        host, port = place.dist_init_addr.rsplit(":", 1)
        if place.node_rank:
            if self._dies:
                threading.Timer(0.5, os._exit, [1]).start()
            else:
                threading.Thread(target=_meet, args=(host, int(port), place.node_rank), daemon=True).start()
            return "ok", ""
        with socket.create_server((host, int(port))) as server:
            met = [server.accept()[0].recv(9).decode() for _ in range(place.num_nodes - 1)]
        return "ok", f"http://{host}:1/{','.join(met)}"

    def meeting_point(self, node_address: str | None) -> str:
        return meeting_point(node_address)

    def call(self, method: str, *args: Any) -> Any:
        return "ok", (f"log of {os.getpid()}", args[0] + 1) if method == "read_log" else None


def _meet(host: str, port: int, rank: int) -> None:
    for _ in range(int(10 * HANG_S)):
        try:
            socket.create_connection((host, port)).sendall(str(rank).encode())
            return
        except OSError:  # it does not listen yet
            time.sleep(0.1)


def _spanning(group: Group, dies: bool) -> dict[str, Any]:
    """An instance on two nodes, up to its URL and log, or to its error."""
    actors = [group.start(SpanningActor, index, dies) for index in range(2)]
    with ending(actors):
        instance = RemoteInstance(actors, group, HANG_S)
        try:
            url = instance.wait_started()
            instance.check()
            return {"url": url, "log": instance.new_log(), "nodes": list(instance.nodes)}
        except InstanceError as error:
            return {"error": str(error), "may_pass": error.may_pass}


def main() -> None:
    config = ClusterConfig(address=sys.argv[1], ready_timeout_s=HANG_S)
    (cell,) = load_cells(["experiment=quickstart", "offload=full_kv"])
    said: dict[str, Any] = {}
    with Cluster.open(config, 1) as cluster, cluster.loadgen(1, [cell, cell]) as loadgen:
        places = cluster._places
        said["loadgen"] = loadgen.describe()["node_id"]
        wishes = Wishes(loaded=[said["loadgen"]])
        with places.group(Ask({"CPU": 1}, 2), wishes, alone=True, check=lambda: None) as group:
            actors = [group.start(LoadgenActor, index) for index in range(2)]
            with ending(actors):
                said["two"] = [node.id for node in group.nodes]
                said["ran_on"] = [_node_of(actor) for actor in actors]
            said["spanning"], said["broken"] = _spanning(group, False), _spanning(group, True)
            said["free_beside_two"] = {node.id: node.free.get("CPU", 0) for node in _settled(places, 2)}
        try:
            places._timeout_s = 3.0
            with places.group(Ask({"CPU": 1}, 4), wishes, alone=True, check=lambda: None):
                pass
        except NoRoom as error:
            said["four"] = str(error)
        places._timeout_s = HANG_S
        with cluster.instance(cell) as instance:
            said["one"] = list(instance.nodes)
            said["url"] = instance.wait_started()
            said["described"] = instance.describe()["nodes"]
    print(json.dumps(said))


def _node_of(actor: Any) -> str:
    import ray

    ray.get(actor.clock.remote(), timeout=HANG_S)  # it runs
    state = ray._private.state.actors(actor._actor_id.hex())
    return str(state["Address"]["NodeID"])


def _settled(places: Any, owned: int) -> list[Any]:
    """Once what is held is seen everywhere."""
    deadline = time.monotonic() + HANG_S
    while True:
        nodes = places.nodes()
        if sum(node.free.get("CPU", 0) == 0 for node in nodes) >= owned or time.monotonic() > deadline:
            return list(nodes)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
