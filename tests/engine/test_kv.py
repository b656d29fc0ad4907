"""The KV side by itself: what it holds against what was predicted, and its counters."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from engine_cells import MODELS, SYSTEMS, Driver, Probe, cell_of, random_requests, run_lockstep
from torch import Tensor

from harness.engine.batch import DecodeBatch
from harness.engine.footprint import Footprint
from harness.engine.kv import make_kv
from harness.engine.kv.full import FullKV
from harness.engine.kv.hierarchy import Hierarchy
from harness.engine.kv.hisparse import HiSparse
from harness.engine.kv.lanes import Lane
from harness.engine.scheduler import Chunk, Plan

ALL_SYSTEMS = (*SYSTEMS, "no_io_oracle")
SLOTS = 24


def written_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor that began as NaNs and has been written to."""
    return int((~tensor.isnan()).sum()) * tensor.element_size()


@pytest.mark.parametrize(("prompt", "new"), [(1, 1), (16, 17), (70, 9)])
@pytest.mark.parametrize("system", ALL_SYSTEMS)
@pytest.mark.parametrize("model", MODELS)
def test_a_request_holds_what_was_predicted(model: str, system: str, prompt: int, new: int) -> None:
    """Tensors are filled with NaN, one request lives to its end, and what is no longer NaN is counted.

    The last token's KV is never computed, so that a request of n positions writes n - 1.
    """
    small = ["engine.device_kv_budget=1MiB", "engine.host_kv_budget=1MiB"]
    probe = Probe(cell_of(model, system, "engine.max_running_requests=3", *small))
    kv, selector = probe.kv, probe.executor.selector
    pool = kv.pool if isinstance(kv, FullKV) else kv.host  # type: ignore[attr-defined]
    for tensor in (pool.records, *selector.state, *([kv.cache] if isinstance(kv, Hierarchy) else [])):
        tensor.fill_(torch.nan)
        if tensor is pool.records or tensor is getattr(kv, "cache", None):
            tensor.view(kv.num_layers, -1, kv.width)[:, 0] = 0  # read for -1 slots
    baseline = written_bytes(pool.records)

    predicted = kv.footprint.request(prompt + new)
    (request,) = random_requests(random.Random(0), 300, [(0, prompt, new)])
    probe.add(0, request)
    probe.run(Plan((0,), (Chunk(0, 0, prompt, True),)))
    for _ in range(new - 1):
        probe.run(Plan((), (), (0,)))

    kv.check_integrity()  # waits for what is on its way to the pool
    pages = len(pool._held[0])
    pool_bytes = pages * pool.page_size * kv.num_layers * kv.width * pool.records.element_size()
    computed = prompt + new - 1
    row_records = kv.footprint.num_records(computed)
    assert written_bytes(pool.records) - baseline in (  # record 0 was written from the start, and is perhaps ours
        row_records * kv.num_layers * kv.footprint.record_bytes,
        max(0, row_records - 1) * kv.num_layers * kv.footprint.record_bytes,
    )
    state = sum(written_bytes(tensor) for tensor in selector.state)
    if selector.resident is None:
        assert state == kv.footprint.request(computed).selection_state
    else:  # the window and the compressors' inputs are reserved whole
        assert 0 < state <= kv.footprint.request(computed).selection_state
    assert state <= predicted.selection_state
    metadata = 4 * pages
    if isinstance(kv, FullKV):
        assert (pool_bytes, 0) == (predicted.records, predicted.host)
    else:
        assert isinstance(kv, Hierarchy)
        row_cache = kv.cache[:, 0].numel() * kv.cache.element_size()
        assert (row_cache, pool_bytes) == (predicted.records, predicted.host)
        if isinstance(kv, HiSparse):
            metadata += 4 * (kv.slot_positions[:, 0].numel() + kv.lru_order[:, 0].numel())
    assert metadata == predicted.metadata
    probe.executor.remove(0)
    kv.check_idle()


@pytest.mark.parametrize("system", ALL_SYSTEMS)
def test_device_memory_made_is_within_the_budget(system: str) -> None:
    """Rows that the budget could never fill are not made (a page of slack each for rounding)."""
    for budget in ("64KiB", "300KiB", "1MiB"):
        config = cell_of("dsa", system, f"engine.device_kv_budget={budget}")
        kv = make_kv(config)
        made = [kv.pool.records] if isinstance(kv, FullKV) else [kv.cache]  # type: ignore[attr-defined]
        if isinstance(kv, HiSparse):
            made += [kv.slot_positions, kv.lru_order]
        total = sum(t.numel() * t.element_size() for t in made)
        one = Footprint(config).request(1).device
        assert total <= max(int(config.engine.device_kv_budget), one)


@dataclass
class Counted:
    lookups: int = 0
    misses: int = 0
    h2d_records: int = 0


class BruteForce:
    """HiSparse's section 3.4 in Python lists: for each request and layer its positions, from old to new."""

    def __init__(self, slots: int, keeps: bool):
        self.slots, self.keeps = slots, keeps
        self.caches: dict[tuple[int, int], list[int]] = {}
        self.counted = Counted()

    def load(self, request: int, layer: int, length: int) -> None:
        if self.keeps:
            self.caches[request, layer] = list(range(max(0, length - 1 - self.slots), length - 1))
            self.counted.h2d_records += min(length - 1, self.slots) + 1

    def step(self, request: int, layer: int, length: int, selection: list[int]) -> None:
        chosen = [p for p in selection if p >= 0]
        self.counted.lookups += len(chosen)
        cache = self.caches.get((request, layer), [])
        if self.keeps and 0 <= length - 2 < self.slots:
            cache.append(length - 2)  # the one that was newest finds an empty slot
        wanted = [p for p in chosen if p != length - 1]
        misses = [p for p in wanted if p not in cache]
        self.counted.misses += len(misses)
        self.counted.h2d_records += len(misses)
        if self.keeps:
            hits = [p for p in cache if p in wanted]
            stale = [p for p in cache if p not in wanted]
            room = self.slots - len(hits) - len(misses)
            self.caches[request, layer] = stale[max(0, len(stale) - room) :] + misses + hits


@pytest.mark.parametrize("model", ["dsa", "quest"])
@pytest.mark.parametrize("system", ["fetch_all", "hisparse_sync", "no_io_oracle"])
def test_counters_equal_a_brute_force_count(model: str, system: str) -> None:
    probe = Probe(cell_of(model, system, "engine.max_running_requests=3"))
    judge = BruteForce(SLOTS, keeps=system != "fetch_all")
    rng = random.Random(3)
    run = Driver(random_requests(rng, 300, [(0, 1, 40), (0, 60, 25), (4, 24, 30), (9, 110, 20), (30, 30, 9)]), 3, rng)
    selections: list[list[list[int]]] = []  # of this step, by layer
    select = probe.executor.selector.select

    def kept(layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        chosen = select(layer, batch, query)
        selections.append(chosen.tolist())
        return chosen

    probe.executor.selector.select = kept  # type: ignore[method-assign]
    for i, request in enumerate(run.requests):
        probe.add(i, request)
    while not run.done:
        plan = run.plan()
        if plan:
            selections.clear()
            probe.run(plan)
        for chunk in plan.prefill:
            for layer in range(probe.kv.num_layers):
                judge.counted.h2d_records += chunk.start  # earlier chunks come back for attention
                if chunk.is_last:
                    judge.load(chunk.request_id, layer, chunk.start + chunk.length)
        for at, request_id in enumerate(plan.decode):
            request = run.requests[request_id]
            length = len(request.prompt) + request.generated
            for layer, chosen in enumerate(selections):
                judge.step(request_id, layer, length, chosen[at])
        for i in run.advance(plan):
            probe.executor.remove(i)
    counters, moved = probe.kv.counters, judge.counted.h2d_records
    if system == "no_io_oracle":  # admission's loads and prefill's are real, the misses' are left out
        moved -= judge.counted.misses
    assert judge.counted.misses > 100
    assert (counters.lookups, counters.misses) == (judge.counted.lookups, judge.counted.misses)
    assert counters.h2d_bytes == moved * probe.kv.footprint.record_bytes
    assert (counters.exposed_io_seconds > 0) == (system != "no_io_oracle")


def test_full_kv_moves_nothing() -> None:
    probe = Probe(cell_of("dsa", "full_kv"))
    (request,) = random_requests(random.Random(0), 300, [(0, 40, 3)])
    probe.add(0, request)
    probe.run(Plan((0,), (Chunk(0, 0, 40, True),)))
    probe.run(Plan((), (), (0,)))
    counters = probe.kv.counters
    assert (counters.misses, counters.h2d_bytes, counters.exposed_io_seconds) == (0, 0, 0.0)


@pytest.mark.parametrize("system", ["fetch_all", "hisparse_sync", "hisparse_prefetch", "no_io_oracle"])
@pytest.mark.parametrize("model", ["dsa", "nsa"])
def test_what_is_sent_to_the_host_is_what_was_predicted(model: str, system: str) -> None:
    """Staging and write-through of requests that come and go, against the numbers that `dry_run` prints."""
    probe = Probe(cell_of(model, system, "engine.max_running_requests=3"))
    rng = random.Random(1)
    lengths = [(0, 1, 40), (0, 60, 25), (4, 24, 1), (9, 110, 20), (30, 31, 9)]
    run_lockstep({system: probe}, Driver(random_requests(rng, 300, lengths), 3, rng))
    sent = [probe.kv.footprint.sent_to_host(prompt, new) for _, prompt, new in lengths]
    moved = probe.kv.counters.bytes_moved
    assert (moved[Lane.staging], moved[Lane.write_through]) == tuple(map(sum, zip(*sent, strict=True)))
