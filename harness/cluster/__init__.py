"""Ray: where instances and load generators run. The only package that imports ray.

`Cluster` starts a local Ray for the run, or joins an existing one, and hands out actors on nodes that fit what the
config asks for. Leaving it ends every actor it started, on success, failure or Ctrl-C.
"""

from __future__ import annotations

from harness.cluster.errors import ClusterError, LoadgenError, NoRoom
from harness.cluster.instance import PointEnd, RemoteInstance
from harness.cluster.loadgen import RemoteLoadgen
from harness.cluster.offline import RemoteOffline
from harness.cluster.session import Cluster

__all__ = [
    "Cluster",
    "ClusterError",
    "LoadgenError",
    "NoRoom",
    "PointEnd",
    "RemoteInstance",
    "RemoteLoadgen",
    "RemoteOffline",
]
