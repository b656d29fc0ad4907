"""The engine's code for a GPU, without one: real numbers with late lanes, then devices and waits without numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from engine_cells import Driver, Probe, cell_of, first_difference, random_requests, run_lockstep
from gpu_doubles import gpu as gpu  # a fixture
from hisparse_kernels import ops
from hisparse_kernels.backends import Kernels
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.engine import decoder as decoder_module
from harness.engine.batch import ChunkBatch
from harness.engine.decoder import GraphDecoder, decode_label, next_power, why_eager
from harness.engine.device import CPU, compute_device, weights_to
from harness.engine.footprint import Footprint
from harness.engine.kv import make_kv, paged
from harness.engine.kv.cuda_lanes import CudaLanes
from harness.engine.kv.hierarchy import Hierarchy
from harness.engine.kv.lanes import Lane
from harness.engine.models.loader import load_model
from harness.engine.selectors import make_selector
from harness.schema import Config, Device, Prefetch
from harness.validate import complete

Make = Callable[..., Probe]
VARIANTS = [  # offload system, overrides
    ("full_kv",),
    ("fetch_all",),
    ("hisparse_sync",),
    ("hisparse_sync", "offload.cold_start=empty"),
    ("hisparse_prefetch",),
    ("hisparse_prefetch", "offload.prefetch=speculative"),
]
ORACLE = ("no_io_oracle",)
LENGTHS = [(0, 60, 25), (0, 9, 30), (3, 40, 12), (12, 1, 20)]


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def variant_of(model: str, variant: tuple[str, ...]) -> Config:
    more = [part for part in variant[1:] if "speculative" not in part]
    if model == "shared":  # in batches that are filled up, which experts are not
        model, more = "dsa", [*more, "model.index_anchors=[0,1]"]
    config = cell_of(model, variant[0], *more)
    if "offload.prefetch=speculative" in variant:
        config.offload.prefetch = Prefetch.speculative
    return complete(config)


def driver() -> Driver:
    rng = random.Random(5)
    return Driver(random_requests(rng, 200, LENGTHS), max_rows=3, rng=rng)


@pytest.mark.parametrize(
    ("model", "lanes"),
    [
        ("shared", "late"),
        ("quest", "any_time"),
        *(slow("shared", "any_time"), slow("quest", "late"), slow("dsa", "late"), slow("shared_moe", "any_time")),
    ],
)
def test_systems_agree_bit_by_bit(model: str, lanes: str, gpu: Make) -> None:
    """Every system in padded batches, its lanes as late as they may be, or at any moment before."""
    probes = {}
    for seed, variant in enumerate(VARIANTS):
        rng = random.Random(seed) if lanes == "any_time" else None
        probes[" ".join(variant)] = gpu(variant_of(model, variant), rng)
    run = driver()
    run_lockstep(probes, run)
    for probe in probes.values():
        probe.kv.check_integrity()
    counters = {name: probe.kv.counters for name, probe in probes.items() if name != "full_kv"}
    assert len({(c.lookups, c.bytes_moved[Lane.write_through]) for c in counters.values()}) == 1
    sync = counters["hisparse_sync"]
    sent = [Footprint(variant_of(model, VARIANTS[2])).sent_to_host(len(r.prompt), r.new_tokens) for r in run.requests]
    assert sync.bytes_moved[Lane.write_through] == sum(written for _, written in sent)  # the fill's are not counted
    assert counters["fetch_all"].misses > sync.misses > 100


@pytest.mark.parametrize(
    ("model", "variant"),
    [
        *(("shared", variant) for variant in [*VARIANTS, ORACLE]),
        *((model, ("hisparse_sync",)) for model in ("shared_moe", "nsa")),
        *(slow(model, variant) for model in ("dsa", "quest", "shared_moe", "nsa") for variant in [*VARIANTS, ORACLE]),
    ],
    ids=str,
)
def test_a_gpu_computes_and_counts_what_a_cpu_does(
    model: str, variant: tuple[str, ...], gpu: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches that are not filled up, so that products have the same sizes, and round alike."""
    monkeypatch.setattr(decoder_module, "next_power", lambda number, least=1: number)
    config = variant_of(model, variant)
    late = gpu(deepcopy(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.engine.executor.compute_device", lambda config: CPU)
        plain = Probe(config)
    run = driver()
    for probe in (late, plain):
        for i, request in enumerate(run.requests):
            probe.add(i, request)
    while not run.done:
        plan = run.plan()
        if plan:
            ours, theirs = late.run(plan), plain.run(plan)
            problem = first_difference(run.step, plan, theirs, ours, "the GPU's code")
            assert problem is None, problem
            late.kv.check_integrity()
        for i in run.advance(plan):
            late.executor.remove(i)
            plain.executor.remove(i)
    counted, expected = late.kv.counters, plain.kv.counters
    assert (counted.lookups, counted.misses) == (expected.lookups, expected.misses)
    assert (expected.misses > 0) == config.offload.system.offloads
    assert counted.bytes_moved == expected.bytes_moved
    assert (counted.timed, expected.timed) == (False, True)
    late.kv.check_idle()


@pytest.mark.parametrize("system", ["fetch_all", "hisparse_sync", "hisparse_prefetch"])
def test_a_step_that_does_not_wait_for_its_lanes_is_caught(
    system: str, gpu: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above is worth something: without the waits, late copies are missed."""
    both = {"full_kv": gpu(variant_of("shared", ("full_kv",))), system: gpu(variant_of("shared", (system,)))}
    monkeypatch.setattr(CudaLanes, "order_after", lambda self, event: None)
    with pytest.raises(AssertionError, match=f"{system} differs at step"):
        run_lockstep(both, driver())


def test_padding_leaves_other_rows_alone(gpu: Make) -> None:
    """A batch of three is filled up to four: the fourth writes to a row that nobody has."""
    probe = gpu(cell_of("dsa", "hisparse_sync"))
    kv, selector = probe.kv, probe.executor.selector
    assert kv.state_rows == kv.num_rows + 1 == selector.state[0].shape[1]
    row = kv.num_rows - 1
    selector.state[0][:, row] = 7.0
    request = driver().requests[1]
    for i in range(3):
        probe.add(i, request)
    from harness.engine.scheduler import Chunk, Plan

    probe.run(Plan((0, 1, 2), tuple(Chunk(i, 0, 9, True) for i in range(3)), ()))
    for _ in range(5):
        probe.run(Plan((), (), (0, 1, 2)))
    assert row not in {probe.executor._requests[i].row for i in range(3)}
    assert selector.state[0][:, row].eq(7.0).all()


class OnMeta(TorchDispatchMode):
    """Refuses every operation that reads or makes a tensor in host memory: on a GPU it would wait, or fail. A layer of
    the host pool may be named, which reads nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.select.int and args[0].device == out.device:
            return out
        leaves, _ = torch.utils._pytree.tree_flatten((args, kwargs, out))
        for leaf in leaves:
            assert not isinstance(leaf, Tensor) or leaf.device.type == "meta", f"{func} has a tensor on {leaf.device}"
        return out


class NoKernels:
    """Takes the place of the CUDA module: checks where the tensors lie that it is given."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def scratch_ints(self, n: int, k: int, slots: int) -> int:
        return 2 * n * k

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*args: Any) -> None:
            self.calls.append(name)
            tensors = [arg for arg in args if isinstance(arg, Tensor)]
            in_host = {"resolve": 1, "replay": 1, "stage": 1, "load": 1}.get(name, 0)
            assert sum(tensor.device.type == "cpu" for tensor in tensors) <= in_host, name

        return call


@contextmanager
def meta_kernels() -> Iterator[NoKernels]:
    module, find = NoKernels(), ops.kernels_for
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "kernels_for", lambda kind: Kernels(module, 0) if kind == "meta" else find(kind))
        patch.setattr(ops, "_stream", lambda device: 0)
        patch.setattr(paged, "pin", lambda tensor: tensor)
        yield module


class Instant:
    """Streams of a GPU that is never asked anything."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("model", "variant"),
    [
        *(("shared", variant) for variant in [*VARIANTS, ORACLE]),
        *((model, ("hisparse_sync",)) for model in ("quest", "exact_mla", "window", "dense_mla", "dense_gqa")),
        *(slow(model, variant) for model in ("quest", "exact_mla", "dense_gqa") for variant in VARIANTS),
    ],
    ids=str,
)
@torch.inference_mode()
def test_a_captured_step_stays_on_the_device(model: str, variant: tuple[str, ...]) -> None:
    """On a device without memory nothing can be read by the host, so nothing waits and no branch depends on data."""
    config, meta = variant_of(model, variant), torch.device("meta")
    with meta_kernels() as module:
        kv = make_kv(config, meta)
        if isinstance(kv, Hierarchy):
            kv.lanes = CudaLanes(Instant())  # type: ignore[arg-type]
        selector, net = make_selector(config, kv.state_rows, meta), load_model(config, None, meta)
        row = kv.admit(60)
        for start, length in ((0, 20), (20, 15)):
            batch = ChunkBatch.of(row, start, length, meta)
            kv.begin_chunk(batch)
            assert net.prefill(torch.zeros(length, dtype=torch.int64, device=meta), batch, kv, selector).device == meta
        kv.finish_prefill(row, 35)
        decoder = GraphDecoder(net, kv, selector, config.context_len, capture=False)
        run = decoder._run

        def strictly(size: Any) -> Tensor:
            with OnMeta():
                return run(size)

        decoder._run = strictly  # type: ignore[method-assign]
        logits = decoder([1, 2, 3], [row, 0, 0], [36, 1, 1])
    assert (logits.device, logits.shape) == (meta, (3, config.model.vocab_size))
    if variant[0] not in ("full_kv", "fetch_all"):
        assert {"append", "match" if variant[0] == "no_io_oracle" else "resolve"} <= set(module.calls)


@torch.inference_mode()
def test_csa_prefill_stays_on_the_device() -> None:
    config, meta = cell_of("nsa", "hisparse_sync"), torch.device("meta")
    config.model.num_experts, config.model.intermediate_size = None, 64  # the host sorts tokens by their experts
    with meta_kernels():
        kv = make_kv(config, meta)
        assert isinstance(kv, Hierarchy)
        kv.lanes = CudaLanes(Instant())  # type: ignore[arg-type]
        selector, net = make_selector(config, kv.state_rows, meta), load_model(config, None, meta)
        row = kv.admit(40)
        for start, length in ((0, 33), (33, 30)):
            batch = ChunkBatch.of(row, start, length, meta)
            kv.begin_chunk(batch.in_records(2))
            tokens = torch.zeros(length, dtype=torch.int64, device=meta)
            with OnMeta():
                net.prefill(tokens, batch, kv, selector)


class FakeGraph:
    replays = 0

    def replay(self) -> None:
        self.replays += 1


@torch.inference_mode()
def test_a_size_runs_then_is_captured_then_replayed(gpu: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = gpu(cell_of("dsa", "full_kv"))
    executor = probe.executor
    decoder = GraphDecoder(executor.model, executor.kv, executor.selector, 256)
    captures, ran = list[tuple[Any, Any, Any]](), list[list[list[int]]]()

    @contextmanager
    def capture(graph: FakeGraph, pool: str, stream: str) -> Iterator[None]:
        captures.append((graph, pool, stream))
        yield

    def run(size: Any) -> Tensor:
        ran.append(size.inputs.tolist())
        return torch.arange(4.0)[: size.inputs.shape[1]].unsqueeze(1)

    for name, value in (("CUDAGraph", FakeGraph), ("graph", capture), ("graph_pool_handle", lambda: "memory")):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(decoder_module, "compute_stream", lambda: "stream")
    monkeypatch.setattr(decoder, "_run", run)
    rows = executor.kv.num_rows
    for step in range(5):
        assert decoder([1, 2, 3], [0, 4, 2], [5, 200, 7 + step]).tolist() == [[0.0], [1.0], [2.0]]
        assert decoder._sizes[4, 256].inputs.tolist() == [[1, 2, 3, 0], [0, 4, 2, rows], [5, 200, 7 + step, 1]]
    (graph, pool, stream) = captures[0]
    assert (len(captures), len(ran), pool, stream, decoder.num_graphs) == (1, 2, "memory", "stream", 1)
    assert graph.replays == 4  # the captured step's own among them: a capture runs nothing
    decoder([1, 2], [0, 1], [5, 5])
    assert (len(captures), len(ran), decoder.num_graphs) == (1, 3, 1)  # another size begins anew


def test_sizes_of_graphs() -> None:
    assert [next_power(n) for n in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]
    assert [next_power(n, 256) for n in (1, 256, 257, 5000)] == [256, 256, 512, 8192]


def test_why_steps_are_not_captured() -> None:
    def on_gpu(model: str, *more: str) -> str:
        config = cell_of(model, "hisparse_sync", *more)
        config.platform.device = Device.cuda
        return decode_label(config)

    assert on_gpu("dsa") == on_gpu("quest") == "CUDA graphs"
    assert on_gpu("shared_moe") == "eager: the host sorts tokens by their experts"
    assert on_gpu("nsa").startswith("eager: compressed entries")
    assert why_eager(cell_of("dsa", "full_kv")) == "computed on the CPU"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_cuda_a_gpu_is_refused_in_one_line() -> None:
    config = cell_of("dsa", "full_kv")
    config.platform.device = Device.cuda
    with pytest.raises(ValueError, match=r"^platform.device=cuda cannot run here: .*; or choose platform=cpu$"):
        compute_device(config)


def test_weights_move_once_each() -> None:
    config = cell_of("quest", "full_kv")
    weights = load_model(config, None).weights  # type: ignore[attr-defined]
    moved = weights_to(weights, torch.device("meta"))
    assert weights_to(weights, CPU) is weights
    assert moved.embed.device.type == moved.layers[2].mlp.down.device.type == "meta"
    assert (moved.head is moved.embed) == (weights.head is weights.embed)
    assert moved.layers[0].q_norm is None
