"""Which nodes are chosen, against a search through all possible choices; what the papers' platforms ask for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import load_cells
from harness.placement import (
    Ask,
    Node,
    Wishes,
    accelerator_resource,
    ask_of,
    best_possible,
    choose,
    fit_together,
    loadgen_nodes,
    why_no_room,
)
from harness.schema import EngineKind


def node(name: str, cpus: float = 4, gpus: float = 0, *, used: float = 0, kind: str = "H200") -> Node:
    total = {"CPU": cpus, "memory": 1e9} | ({"GPU": gpus, f"accelerator_type:{kind}": 1.0} if gpus else {})
    return Node(name, f"10.0.0.{name}", total, total | {"CPU": cpus - used})


def test_the_cpu_platform_asks_for_what_it_took_before() -> None:
    (cell,) = load_cells(["experiment=quickstart", "offload=full_kv"])
    assert ask_of(cell) == Ask({"CPU": 1}, 1)
    cell.platform.memory = 8 << 30
    assert ask_of(cell) == Ask({"CPU": 1, "memory": float(8 << 30)}, 1)


def test_one_local_gpu() -> None:
    (cell,) = load_cells(["experiment=quickstart", "offload=full_kv", "platform=cuda"])
    assert ask_of(cell) == Ask({"CPU": 4, "GPU": 1.0}, 1)


@pytest.mark.parametrize(
    ("platform", "tp", "nodes", "gpus"),
    [
        ("h200x8", 8, 1, 8),
        ("h200x8", 4, 1, 4),
        ("h200x8", 16, 2, 8),
        ("h100x8", 8, 1, 8),
        ("a100x8", 32, 4, 8),
        ("b200x2", 2, 1, 2),
        ("gh200", 1, 1, 1),
        ("gh200", 4, 4, 1),
    ],
)
def test_a_platform_s_accelerators_on_as_many_nodes_as_it_takes(platform: str, tp: int, nodes: int, gpus: int) -> None:
    (cell,) = load_cells(["experiment=quickstart", "offload=full_kv", f"platform={platform}"])
    cell.engine.kind, cell.engine.tensor_parallel = EngineKind.sglang, tp
    resource = accelerator_resource(str(cell.platform.accelerator))
    ask = ask_of(cell)
    assert (ask.nodes, ask.each["GPU"], ask.each["CPU"]) == (nodes, gpus, cell.platform.num_cpus)
    assert 0 < ask.each[resource] <= 0.01
    assert resource == f"accelerator_type:{platform.split('x')[0].upper()}"  # as Ray names it on such a node


def test_ray_s_own_names() -> None:
    """Of the names that nvidia-smi gives such devices."""
    manager = pytest.importorskip("ray._private.accelerators.nvidia_gpu").NvidiaGPUAcceleratorManager
    for name, accelerator in (
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
    ):
        assert accelerator_resource(accelerator) == f"accelerator_type:{manager._gpu_name_to_accelerator_type(name)}"


names = st.sampled_from("abcd")


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=4),
    want=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 3)),
    failed=st.sets(names),
    loaded=st.sets(names),
    warm=st.sets(names),
    alone=st.booleans(),
    held_by_us=st.booleans(),
)
def test_no_better_nodes_could_have_been_chosen(
    sizes: list[tuple[int, int, int]],
    want: tuple[int, int, int],
    failed: set[str],
    loaded: set[str],
    warm: set[str],
    alone: bool,
    held_by_us: bool,
) -> None:
    nodes = [node(n, c, g, used=min(c, u)) for n, (c, g, u) in zip("abcd", sizes, strict=False)]
    held = {n.id: {"CPU": n.total["CPU"] - n.free["CPU"]} for n in nodes} if held_by_us else {}
    ask = Ask({"CPU": want[0]} | ({"GPU": want[1]} if want[1] else {}), want[2])
    wishes = Wishes(failed, loaded, warm)
    usable = [
        n
        for n in nodes
        if n.free["CPU"] >= want[0]
        and n.free.get("GPU", 0) >= want[1]
        and (not alone or held_by_us or n.free == n.total)
    ]
    found = choose(nodes, ask, wishes, held, alone=alone)
    every = [sum(map(wishes.against, some)) for some in itertools.combinations(usable, ask.nodes)]
    if not every:
        assert found is None
        return
    assert found is not None
    assert len(set(found.nodes)) == ask.nodes and set(found.nodes) <= {n.id for n in usable}
    assert found.against == min(every)
    assert found == choose(nodes[::-1], ask, wishes, held, alone=alone)  # whatever order the cluster lists them in
    best = best_possible(nodes, ask, wishes, {})
    assert best and best.against <= found.against


def test_a_cell_goes_where_no_load_generator_is_and_elsewhere_after_a_failure() -> None:
    nodes = [node("a"), node("b"), node("c")]
    ask = Ask({"CPU": 1})
    assert choose(nodes, ask, Wishes(loaded=["a"]), {}, alone=True).nodes == ("b",)  # type: ignore[union-attr]
    assert choose(nodes, ask, Wishes(["b"], ["a"]), {}, alone=True).nodes == ("c",)  # type: ignore[union-attr]
    assert choose(nodes, ask, Wishes(["b", "c"], ["a"]), {}, alone=True).nodes == ("a",)  # type: ignore[union-attr]
    assert choose(nodes, ask, Wishes(warm=["c"]), {}, alone=True).nodes == ("c",)  # type: ignore[union-attr]


def test_work_on_the_cpu_leaves_gpus_to_others() -> None:
    nodes = [node("a", gpus=8), node("b", cpus=64), node("c", cpus=8)]
    assert choose(nodes, Ask({"CPU": 2}), Wishes(), {}, alone=False).nodes == ("c",)  # type: ignore[union-attr]


def test_load_generators_leave_the_nodes_that_cells_need() -> None:
    gpus = [node("a", gpus=8), node("b", gpus=8), node("c")]
    one, two = Ask({"CPU": 1, "GPU": 8.0}), Ask({"CPU": 1, "GPU": 8.0}, 2)
    assert loadgen_nodes(gpus, {"CPU": 1}, 3, [one, two]) == ["c"]
    assert sorted(loadgen_nodes(gpus, {"CPU": 1}, 5, [two])) == ["a", "b", "c"]  # no other way
    equal = [node("a"), node("b"), node("c")]
    assert len(loadgen_nodes(equal, {"CPU": 1}, 1, [Ask({"CPU": 2}, 2)])) == 1
    assert len(loadgen_nodes(equal, {"CPU": 1}, 6, [Ask({"CPU": 2})])) == 2
    assert loadgen_nodes([node("a")], {"CPU": 1}, 1, [Ask({"CPU": 2})]) == ["a"]


def test_what_fits_together() -> None:
    nodes = [node("a", 4), node("b", 2)]
    assert fit_together(nodes, [Ask({"CPU": 2})] * 3)
    assert not fit_together(nodes, [Ask({"CPU": 2})] * 4)
    assert fit_together(nodes, [Ask({"CPU": 2}, 2), Ask({"CPU": 2})])
    assert not fit_together(nodes, [Ask({"CPU": 2}, 2), Ask({"CPU": 3})])
    assert not fit_together(nodes, [Ask({"CPU": 1, "GPU": 1})])


def test_no_room_says_what_is_there_and_what_to_do() -> None:
    ask = Ask({"CPU": 2, "GPU": 8.0, "accelerator_type:H200": 0.001}, 2)
    said = why_no_room([node("a", gpus=8), node("b", gpus=8, kind="H100")], ask, alone=True)
    assert "8 GPUs (H200), 2 CPUs on each of 2 nodes" in said and "8 GPUs (H100), 4 CPUs" in said
    busy = why_no_room([node("a", used=1)], Ask({"CPU": 2}), alone=True)
    assert "cluster.exclusive=false" in busy and "\n" not in said + busy
