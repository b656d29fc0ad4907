"""Where on a cluster a cell's instance and the load generators go: what they ask for, and which nodes give it.

Arithmetic over what a cluster says of its nodes; `harness.cluster` asks Ray. Resources are named as Ray names them:
CPU, GPU, memory (bytes), accelerator_type:H200.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from harness.schema import Config, Device, EngineKind
from harness.units import counted, show_bytes

Resources = Mapping[str, float]

_EPS = 1e-6
_SHARE = 0.001  # of a node's accelerator_type, as Ray's own `accelerator_type=` takes
_TYPE = "accelerator_type:"
_WATCHING_CPUS = 0.1  # of an actor that only asks a running server over HTTP


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster that is alive."""

    id: str
    address: str
    total: Resources
    free: Resources


@dataclass(frozen=True, slots=True)
class Ask:
    """What something needs: these resources on each of so many different nodes."""

    each: Resources
    nodes: int = 1

    def __str__(self) -> str:
        shown = describe(self.each)
        return shown if self.nodes == 1 else f"{shown} on each of {self.nodes} nodes"


@dataclass(frozen=True, slots=True)
class Wishes:
    """Nodes that are better not chosen, or rather chosen, where there is a choice."""

    failed: Collection[str] = field(default_factory=tuple)
    """An earlier try of the same cell broke on these."""
    loaded: Collection[str] = field(default_factory=tuple)
    """A load generator is on these."""
    warm: Collection[str] = field(default_factory=tuple)
    """The model's weights were read on these lately, so that their memory may still hold them."""

    def against(self, node: Node) -> int:
        return (
            4 * (node.id in self.failed) + 2 * (node.id in self.loaded) + (bool(self.warm) and node.id not in self.warm)
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """Nodes by id, the first leads; `against`: how much speaks against them (0: nothing)."""

    nodes: tuple[str, ...]
    against: int


def accelerators_of(config: Config) -> int:
    """Accelerators that one node of the cell's instance takes."""
    engine, platform = config.engine, config.platform
    if engine.kind is EngineKind.sglang:
        return -(-config.devices // config.num_nodes) if platform.accelerator else 0
    return 1 if platform.device is Device.cuda and engine.kind is not EngineKind.external else 0


def ask_of(config: Config) -> Ask:
    """What a cell's instance asks for."""
    platform, devices = config.platform, accelerators_of(config)
    if config.engine.kind is EngineKind.external:
        return Ask({"CPU": _WATCHING_CPUS})
    each: dict[str, float] = {"CPU": platform.num_cpus}
    if platform.memory is not None:
        each["memory"] = float(platform.memory)
    if devices:
        each["GPU"] = float(devices)
        if platform.accelerator:
            each[accelerator_resource(platform.accelerator)] = _SHARE
    return Ask(each, config.num_nodes)


def accelerator_resource(name: str) -> str:
    """Ray's name for a kind of accelerator: `H200` -> `accelerator_type:H200`."""
    return _TYPE + "-".join(name.split())


def choose(
    nodes: Sequence[Node], ask: Ask, wishes: Wishes, held: Mapping[str, Resources], *, alone: bool
) -> Choice | None:
    """Nodes for an ask, the best by the wishes and then the smallest that do; None where too few have room now.

    held: what this run holds on nodes already. alone: only nodes on which nobody else holds CPUs or GPUs.
    """
    found = [
        node
        for node in nodes
        if covers(node.free, ask.each) and (not alone or not others_hold(node, held.get(node.id, {})))
    ]
    if len(found) < ask.nodes:
        return None
    found.sort(key=lambda node: (wishes.against(node), *_size(node), node.id))
    best = found[: ask.nodes]
    return Choice(tuple(node.id for node in best), sum(map(wishes.against, best)))


def best_possible(nodes: Sequence[Node], ask: Ask, wishes: Wishes, held: Mapping[str, Resources]) -> Choice | None:
    """What `choose` would find if only this run used the cluster; None where it never fits."""
    empty = [Node(node.id, node.address, node.total, less(node.total, held.get(node.id, {}))) for node in nodes]
    return choose(empty, ask, wishes, {}, alone=False)


def loadgen_nodes(nodes: Sequence[Node], each: Resources, processes: int, cells: Sequence[Ask]) -> list[str]:
    """Nodes for the load generators that leave enough others for every cell; all of them where that cannot be.

    Nodes of which no cell can make use come first, then the smallest.
    """
    ranked = sorted(nodes, key=lambda node: (sum(covers(node.total, ask.each) for ask in cells), *_size(node), node.id))
    for count in range(1, len(ranked)):
        kept, rest = ranked[:count], ranked[count:]
        room = sum(_times(node.free, each) for node in kept)
        if room >= processes and all(sum(covers(n.total, ask.each) for n in rest) >= ask.nodes for ask in cells):
            return [node.id for node in kept]
    return [node.id for node in ranked]


def fit_together(nodes: Sequence[Node], asks: Sequence[Ask]) -> bool:
    """Whether all asks fit on the cluster at once, each put where it fits first, the largest first."""
    left = {node.id: dict(node.total) for node in nodes}
    for ask in sorted(asks, key=lambda ask: (-ask.nodes, -ask.each.get("GPU", 0), -ask.each.get("CPU", 0))):
        fitting = [name for name in left if covers(left[name], ask.each)][: ask.nodes]
        if len(fitting) < ask.nodes:
            return False
        for name in fitting:
            left[name] = less(left[name], ask.each)
    return True


def why_no_room(nodes: Sequence[Node], ask: Ask, *, alone: bool) -> str:
    """One line about an ask that got no nodes, with what to do about it."""
    able = [node for node in nodes if covers(node.total, ask.each)]
    if len(able) >= ask.nodes:
        hint = "wait for it, or share it with cluster.exclusive=false" if alone else "wait for it"
        return f"no room for {ask}: {counted(len(able), 'node')} would do, but other work is on them; {hint}"
    have = ", ".join(sorted({describe(node.total) for node in nodes})) or "no nodes"
    keys = "platform.num_cpus, platform.memory or cluster.loadgen_cpus"
    return f"no room for {ask}: the cluster's nodes have {have}; lower {keys}, or choose a platform it has"


def covers(have: Resources, want: Resources) -> bool:
    return all(have.get(name, 0.0) + _EPS >= amount for name, amount in want.items())


def others_hold(node: Node, held: Resources) -> bool:
    """Whether CPUs or GPUs of the node are in use beyond what this run holds there."""
    return any(
        node.total.get(name, 0.0) - node.free.get(name, 0.0) - held.get(name, 0.0) > _EPS for name in ("CPU", "GPU")
    )


def less(have: Resources, taken: Resources) -> dict[str, float]:
    return {name: amount - taken.get(name, 0.0) for name, amount in have.items()}


def more(have: Resources, added: Resources) -> dict[str, float]:
    return {name: have.get(name, 0.0) + added.get(name, 0.0) for name in {**have, **added}}


def describe(each: Resources) -> str:
    """`8 GPUs (H200), 16 CPUs, 64 GiB of memory`."""
    gpus, cpus, memory = (each.get(name, 0.0) for name in ("GPU", "CPU", "memory"))
    kinds = ", ".join(sorted(name.removeprefix(_TYPE) for name in each if name.startswith(_TYPE)))
    parts = []
    if gpus:
        parts.append(f"{gpus:g} GPU{'s' * (gpus != 1)}" + (f" ({kinds})" if kinds else ""))
    parts.append(f"{cpus:g} CPU{'s' * (cpus != 1)}")
    if memory:
        parts.append(f"{show_bytes(int(memory))} of memory")
    return ", ".join(parts)


def _times(have: Resources, want: Resources) -> int:
    return int(min((have.get(name, 0.0) + _EPS) // amount for name, amount in want.items()))


def _size(node: Node) -> tuple[float, float]:
    return node.total.get("GPU", 0.0), node.total.get("CPU", 0.0)
