"""Joins the cluster named on the command line and says, as JSON, where groups of bundles came to lie."""

from __future__ import annotations

import json
import sys
from typing import Any

from harness.actors import LoadgenActor
from harness.cluster import Cluster, NoRoom
from harness.cluster.groups import ending
from harness.config import load_cells
from harness.placement import Ask, Wishes
from harness.schema import ClusterConfig


def main() -> None:
    config = ClusterConfig(address=sys.argv[1], ready_timeout_s=20.0)
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
            said["free_beside_two"] = {node.id: node.free.get("CPU", 0) for node in _settled(places, 2)}
        try:
            places._timeout_s = 3.0
            with places.group(Ask({"CPU": 1}, 4), wishes, alone=True, check=lambda: None):
                pass
        except NoRoom as error:
            said["four"] = str(error)
        places._timeout_s = 20.0
        with cluster.instance(cell) as instance:
            said["one"] = list(instance.nodes)
            said["url"] = instance.wait_started()
            said["described"] = instance.describe()["nodes"]
    print(json.dumps(said))


def _node_of(actor: Any) -> str:
    import ray

    ray.get(actor.clock.remote(), timeout=60)  # it runs
    state = ray._private.state.actors(actor._actor_id.hex())
    return str(state["Address"]["NodeID"])


def _settled(places: Any, owned: int) -> list[Any]:
    """Once what is held is seen everywhere."""
    import time

    deadline = time.monotonic() + 10
    while True:
        nodes = places.nodes()
        if sum(node.free.get("CPU", 0) == 0 for node in nodes) >= owned or time.monotonic() > deadline:
            return list(nodes)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
