"""Actors in placement groups: which nodes they lie on, and that they end with the `with` block that made them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from harness.cluster.errors import ClusterError, NoRoom, first_line
from harness.interrupts import shielded
from harness.patience import Check
from harness.placement import Ask, Node, Resources, Wishes, best_possible, choose, less, more, why_no_room

POLL_S = 0.1
SETTLE_S = 5.0  # what was just given back is not always free at once: for so long only the best nodes will do
PLACE_S = 5.0  # for Ray to reserve nodes that have room; somebody may have been faster


_Placed = tuple[Any, list[Node], list[Resources]]  # the placement group, its nodes, what it holds on each


class Group:
    """A placement group that is ready: a bundle on each of its nodes, in their order."""

    def __init__(self, group: Any, nodes: Sequence[Node], each: Resources):
        self._group, self._each = group, each
        self.nodes = tuple(nodes)

    @property
    def id(self) -> str:
        return str(self._group.id.hex())

    def start(self, kind: type, index: int, *args: Any) -> Any:
        """An actor in a bundle. `options` of Ray are what the bundle was asked for, not all it holds."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return (
            ray.remote(kind)
            .options(
                num_cpus=self._each["CPU"],
                num_gpus=self._each.get("GPU", 0),
                max_concurrency=3,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
            )
            .remote(*args)
        )


@contextmanager
def ending(actors: Sequence[Any]) -> Iterator[None]:
    """Kill the actors at the end."""
    import ray

    try:
        yield
    finally:
        with shielded():
            for actor in actors:
                ray.kill(actor)


class Places:
    """The nodes of the cluster, and what this run holds on them."""

    def __init__(self, ready_timeout_s: float):
        self._timeout_s = ready_timeout_s
        self._held: dict[str, dict[str, float]] = {}
        self._lock = threading.Lock()  # of what is held, from the choice to the reservation

    def nodes(self) -> list[Node]:
        """Those that are alive. Raises ClusterError where the cluster does not answer."""
        import ray
        from ray._private.state import available_resources_per_node

        try:
            alive, free = [node for node in ray.nodes() if node["Alive"]], available_resources_per_node()
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise ClusterError(f"the cluster does not answer: {first_line(error)}") from error
        return [
            Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"], free.get(node["NodeID"], {}))
            for node in alive
        ]

    @contextmanager
    def group(self, ask: Ask, wishes: Wishes, *, alone: bool, check: Check) -> Iterator[Group]:
        """Bundles on `ask.nodes` different nodes; alone: they hold all CPUs and GPUs that are left there.

        Raises NoRoom when there are no such nodes in time, and what `check` raises.
        """
        made, nodes, bundles = self._place(ask, wishes, alone, check)
        try:
            yield Group(made, nodes, ask.each)
        finally:
            with shielded(), self._lock:
                _remove(made)
                for node, bundle in zip(nodes, bundles, strict=True):
                    self._held[node.id] = less(self._held[node.id], bundle)

    @contextmanager
    def spread(self, each: Resources, count: int, among: Sequence[str], check: Check) -> Iterator[list[Group]]:
        """So many bundles, a group each, on the nodes named `among`, as even as they can be."""
        with ExitStack() as stack:
            groups: list[Group] = []
            for _ in range(count):
                used = [group.nodes[0].id for group in groups]
                least = min((used.count(name) for name in among), default=0)
                better = [name for name in among if used.count(name) == least]
                wishes = Wishes(warm=better, failed=[n.id for n in self.nodes() if n.id not in among])
                groups.append(stack.enter_context(self.group(Ask(each), wishes, alone=False, check=check)))
            yield groups

    def _place(self, ask: Ask, wishes: Wishes, alone: bool, check: Check) -> _Placed:
        began, demand = time.monotonic(), None
        try:
            while True:
                check()
                waited = time.monotonic() - began
                nodes = self.nodes()
                if placed := self._try(nodes, ask, wishes, alone, settled=waited > SETTLE_S):
                    return placed
                if waited > self._timeout_s:
                    raise NoRoom(f"{why_no_room(nodes, ask, alone=alone)} (waited {waited:.0f} s)")
                if demand is None and best_possible(nodes, ask, wishes, self._held) is None:
                    demand = _demand(ask)
                elif demand is not None and demand.wait(POLL_S):
                    _remove(demand)
                    demand = None
                time.sleep(POLL_S)
        finally:
            if demand is not None:
                _remove(demand)

    def _try(self, nodes: list[Node], ask: Ask, wishes: Wishes, alone: bool, *, settled: bool) -> _Placed | None:
        """Reserve the best nodes that have room now; before all has settled only the best there could be."""
        with self._lock:
            found = choose(nodes, ask, wishes, self._held, alone=alone)
            best = best_possible(nodes, ask, wishes, self._held)
            if found is None or not (settled or best is None or found.against <= best.against):
                return None
            by_id = {node.id: node for node in nodes}
            chosen = [by_id[name] for name in found.nodes]
            bundles = [_whole(node, ask.each) if alone else ask.each for node in chosen]
            made = _reserve(bundles, found.nodes)
            if made is None:
                return None
            for node, bundle in zip(chosen, bundles, strict=True):
                self._held[node.id] = more(self._held.get(node.id, {}), bundle)
            return made, chosen, bundles


def _whole(node: Node, each: Resources) -> Resources:
    """All CPUs and GPUs that are left on a node, and the rest of what is asked for."""
    return {**each, **{name: node.free[name] for name in ("CPU", "GPU") if node.free.get(name)}}


def _reserve(bundles: Sequence[Resources], nodes: Sequence[str]) -> Any | None:
    """A placement group on exactly these nodes; None where it is not ready at once."""
    from ray.util.placement_group import placement_group

    there = [{"ray.io/node-id": name} for name in nodes]
    strategy = "STRICT_PACK" if len(bundles) == 1 else "STRICT_SPREAD"
    group = placement_group([dict(b) for b in bundles], strategy=strategy, bundle_label_selector=there)
    try:
        if group.wait(PLACE_S):
            return group
    except BaseException:
        _remove(group)
        raise
    _remove(group)
    return None


def _demand(ask: Ask) -> Any:
    """A group that no node can hold: what an autoscaler sees."""
    from ray.util.placement_group import placement_group

    return placement_group([dict(ask.each)] * ask.nodes, strategy="STRICT_SPREAD")


def _remove(group: Any) -> None:
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(group)
