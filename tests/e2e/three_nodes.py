"""A Ray cluster of three nodes on this machine, for as long as standard input is open.

Prints one line of JSON when it stands: its address and the nodes' ids, the head's first. Then reads commands, a line
each: `kill NODE_ID` ends a node as a power cut would. Answers each with a line.
"""

from __future__ import annotations

import json
import sys

from ray.cluster_utils import Cluster

HEAD_CPUS, CPUS = 2, 3  # the head is the smallest: load generators go there, so that cells can lose their nodes
MIB = 1 << 20


def main() -> None:
    own = {"num_cpus": HEAD_CPUS, "object_store_memory": 80 * MIB, "temp_dir": sys.argv[1]}
    cluster = Cluster(initialize_head=True, head_node_args={**own, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(wait=False, num_cpus=CPUS, object_store_memory=80 * MIB)
        cluster.wait_for_nodes()
        nodes = [cluster.head_node, *cluster.worker_nodes]
        print(json.dumps({"address": cluster.address, "nodes": [node.node_id for node in nodes]}), flush=True)
        for line in sys.stdin:
            _, node_id = line.split()
            (node,) = (node for node in cluster.worker_nodes if node.node_id == node_id)
            cluster.remove_node(node, allow_graceful=False)
            print("done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
