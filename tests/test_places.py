"""What is asked of Ray's head, and what comes of it where it does not answer."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from ray._private import state

from harness.cluster import ClusterError
from harness.cluster import groups as module
from harness.cluster.groups import Places

NODE = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0}}


def unanswered(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Have the head answer once it was asked so many times; what is returned grows with each."""
    asked: list[int] = []

    def nodes() -> list[dict[str, Any]]:
        asked.append(len(asked))
        if len(asked) <= times:
            raise ray.exceptions.RaySystemError("RPC error: Deadline Exceeded")
        return [NODE, NODE | {"NodeID": "b", "Alive": False}]

    monkeypatch.setattr(ray, "nodes", nodes)
    monkeypatch.setattr(state, "available_resources_per_node", lambda: {"a": {"CPU": 1.0}})
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
    return asked


def test_a_head_that_is_busy_for_a_moment_ends_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = unanswered(monkeypatch, 2)
    (node,) = Places(1.0).nodes()
    assert (node.id, node.free, len(asked)) == ("a", {"CPU": 1.0}, 3)


def test_one_that_stays_silent_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = unanswered(monkeypatch, 99)
    with pytest.raises(ClusterError, match=r"^the cluster does not answer: .*Deadline Exceeded"):
        Places(1.0).nodes()
    assert len(asked) == module.ASKED
