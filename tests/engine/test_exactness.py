"""Placement must not change a bit: logits of all offload systems against full KV, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import hisparse_kernels as kernels
import pytest
import torch
from engine_cells import MODELS, SYSTEMS, Driver, Probe, Request, cell_of, random_requests, run_lockstep
from hisparse_kernels import Plan
from lane_doubles import EagerLanes, LazyLanes, with_lanes

from harness.engine.admission import make_admission
from harness.engine.executor import Executor
from harness.engine.kv.hierarchy import Hierarchy
from harness.engine.kv.hisparse import HiSparse
from harness.engine.kv.lanes import AnyTransfer, Lane, Lanes
from harness.engine.scheduler import Job, Scheduler
from harness.schema import Config

# (arrival step, prompt, new tokens): shorter than k=16, between k and B=24, around B, far longer; joining and
# leaving at different times, more of them than rows, so that rows are used again
COMING_AND_GOING = [
    (0, 90, 120),
    (0, 1, 60),
    (3, 23, 50),
    (10, 24, 20),
    (12, 25, 40),
    (100, 7, 90),
    (120, 140, 60),
    (130, 16, 30),
    (200, 200, 40),
    (210, 2, 60),
    (260, 40, 60),
]
BRIEFLY = [(0, 50, 30), (0, 1, 40), (3, 23, 12), (5, 120, 20), (20, 2, 20)]
ROWS = 4


def probes(model: str, *systems: str) -> dict[str, Probe]:
    return {system: Probe(cell_of(model, system, f"engine.max_running_requests={ROWS}")) for system in systems}


def driver(lengths: list[tuple[int, int, int]], seed: int = 0) -> Driver:
    rng = random.Random(seed)
    return Driver(random_requests(rng, 300, lengths), ROWS, rng)


class Residents:
    """Watches a HiSparse row: counts positions that were in its cache and are no longer."""

    def __init__(self, kv: HiSparse):
        self.evicted = 0
        resolve = kv.resolve

        def watched(layer: int, selection: torch.Tensor) -> torch.Tensor:
            before = kv.slot_positions[layer].clone()
            slots = resolve(layer, selection)
            self.evicted += int(((before >= 0) & (before != kv.slot_positions[layer])).sum())
            return slots

        kv.resolve = watched  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("model", "lengths", "least_steps"),
    [
        ("dsa", COMING_AND_GOING, 300),
        ("quest", COMING_AND_GOING[:5], 100),
        ("shared_moe", COMING_AND_GOING[:5], 100),
        ("nsa", COMING_AND_GOING, 300),
        ("exact_mla", COMING_AND_GOING[:5], 100),
        ("exact_gqa", COMING_AND_GOING[:5], 100),
        ("dense_mla", BRIEFLY, 35),
        ("dense_gqa", BRIEFLY, 35),
    ],
)
def test_logits_are_bit_identical_across_systems(
    model: str, lengths: list[tuple[int, int, int]], least_steps: int
) -> None:
    all_probes = probes(model, *SYSTEMS)
    sparse = all_probes["hisparse_sync"].kv
    assert isinstance(sparse, HiSparse)
    residents, run = Residents(sparse), driver(lengths)
    run_lockstep(all_probes, run)
    assert run.step > least_steps
    assert all_probes["fetch_all"].kv.counters.misses > 0
    if model.startswith("dense"):  # B is the context: everything stays resident
        assert sparse.counters.misses == 0
    else:
        assert sparse.counters.misses == residents.evicted > 500
        assert sparse.counters.misses < all_probes["fetch_all"].kv.counters.misses


@pytest.mark.parametrize("model", ["dsa", "quest"])
def test_a_sequence_that_fits_the_cache_never_needs_the_host(model: str) -> None:
    """Prompt and output of at most B + 1 = 25 positions, on both sides of k."""
    all_probes = probes(model, *SYSTEMS)
    run_lockstep(
        all_probes, driver([(0, 1, 24), (0, 5, 20), (1, 16, 9), (2, 17, 8), (3, 24, 1), (4, 23, 2), (30, 2, 23)])
    )
    assert all_probes["hisparse_sync"].kv.counters.misses == 0
    assert all_probes["hisparse_sync"].kv.counters.lookups == all_probes["fetch_all"].kv.counters.lookups > 0


@pytest.mark.parametrize("model", ["dsa", "quest"])
def test_the_oracle_is_caught(model: str) -> None:
    with pytest.raises(AssertionError, match="no_io_oracle differs at step"):
        run_lockstep(probes(model, "full_kv", "no_io_oracle"), driver(COMING_AND_GOING))


def other_layer(kv: HiSparse, layer: int) -> None:
    records, other = kv.device_records, (layer + 1) % kv.num_layers
    kv.device_records = lambda at: records(other if at == layer else at)  # type: ignore[method-assign]


def fetches_from_other_layer(kv: HiSparse, layer: int) -> None:
    fetch, pool, other = kv._fetch, kv.host.records, (layer + 1) % kv.num_layers

    class Shifted:
        def __getitem__(self, at: int) -> torch.Tensor:
            return pool[other if at == layer else at]

    def wrong(lane: Lane, at: int, plan: Plan) -> AnyTransfer:
        kv.host.records = Shifted()  # type: ignore[assignment]
        try:
            return fetch(lane, at, plan)
        finally:  # before anything else is submitted: what is written goes to the true pool
            kv.host.records = pool

    kv._fetch = wrong  # type: ignore[method-assign]


def forgets_write_through(kv: HiSparse, layer: int) -> None:
    """The host pool gets zeros in place of one layer's new records."""
    write = kv.write_through

    def wrong(at: int, records: torch.Tensor) -> None:
        write(at, torch.zeros_like(records) if at == layer else records)

    kv.write_through = wrong  # type: ignore[method-assign]


def wrong_page(kv: HiSparse, layer: int) -> None:
    """Two pages of a row change places for this layer's fetches."""
    resolve, pages = kv.resolve, kv.host.page_table

    def wrong(at: int, selection: torch.Tensor) -> torch.Tensor:
        if at == layer:
            kv.host.page_table = pages.clone()
            kv.host.page_table[:, [0, 1]] = pages[:, [1, 0]]
        try:
            return resolve(at, selection)
        finally:
            kv.host.page_table = pages

    kv.resolve = wrong  # type: ignore[method-assign]


def one_slot_off(kv: HiSparse, layer: int) -> None:
    resolve = kv.resolve

    def wrong(at: int, selection: torch.Tensor) -> torch.Tensor:
        slots = resolve(at, selection)
        return torch.where(slots > 0, slots - 1, slots) if at == layer else slots

    kv.resolve = wrong  # type: ignore[method-assign]


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize(
    "fault", [other_layer, fetches_from_other_layer, forgets_write_through, wrong_page, one_slot_off]
)
@pytest.mark.parametrize("model", ["dsa", "quest"])
@pytest.mark.parametrize("lanes", [EagerLanes, LazyLanes])
def test_a_fault_in_one_layer_is_caught(model: str, fault: object, layer: int, lanes: type[Lanes]) -> None:
    """The comparison is worth something: each layer's records differ from the others' and move the logits."""
    both = probes(model, "full_kv", "hisparse_sync")
    fault(with_lanes(both["hisparse_sync"].kv, lanes()), layer)  # type: ignore[operator]
    with pytest.raises(AssertionError, match="hisparse_sync differs at step"):
        run_lockstep(both, driver([(0, 90, 120), (2, 60, 100)]))


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("model", ["dsa", "quest"])
def test_a_fault_in_prefill_is_caught(model: str, layer: int) -> None:
    """Earlier chunks read back from another layer's records of the host pool."""
    both = probes(model, "full_kv", "fetch_all")
    kv = both["fetch_all"].kv
    prefix = kv.prefix
    kv.prefix = lambda at: prefix((at + 1) % kv.num_layers if at == layer else at)  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=r"fetch_all differs at step \d+, row 0 \(prefill"):
        run_lockstep(both, driver([(0, 90, 10)]))


@contextmanager
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that is not written reads as NaN, or as 7."""
    empty = torch.empty

    def poisoned(*args: object, **options: object) -> torch.Tensor:
        made = empty(*args, **options)  # type: ignore[call-overload]
        return made.fill_(torch.nan) if made.is_floating_point() else made.fill_(7)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", poisoned)
        yield


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("model", MODELS)
def test_memory_never_written_does_not_matter(model: str, system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools, caches and selector state begin as whatever the allocator returns, NaNs included."""
    lengths = [(0, 1, 12), (0, 40, 12), (5, 3, 6), (6, 70, 5)]
    clean = probes(model, system)[system]
    with poisoned_memory(monkeypatch):
        dirty = probes(model, system)[system]
    run_lockstep({"clean": clean, "dirty": dirty}, driver(lengths))


@pytest.mark.parametrize("model", ["dsa", "quest", "nsa"])
def test_what_the_oracle_does_not_fetch_reads_as_numbers(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold cache has slots that nothing was ever copied to. Their attention is wrong, but no NaN that ends a
    sampling server."""
    with poisoned_memory(monkeypatch):
        probe = Probe(cell_of(model, "no_io_oracle", "offload.cold_start=empty"))
    run = driver([(0, 60, 12)])
    probe.add(0, run.requests[0])
    while not run.done:
        plan = run.plan()
        assert probe.run(plan).isfinite().all()
        run.advance(plan)
    assert probe.kv.counters.misses > 0


def target_logits(model: str, system: str, dtype: str, prompt_len: int, others: int) -> torch.Tensor:
    """Decode logits [steps, vocab] of one request beside `others` of different lengths that come and go."""
    more = ["engine.batch_invariant=true", "engine.max_running_requests=17", f"model.dtype={dtype}"]
    more += [] if model == "nsa" else ["model.num_layers=2"]
    probe = Probe(cell_of(model, system, *more))
    rng = random.Random(prompt_len)
    target = Request(prompt=[rng.randrange(300) for _ in range(prompt_len)], new_tokens=12)
    company = [(rng.randrange(12), rng.randrange(1, 150), rng.randrange(2, 20)) for _ in range(others)]
    run = Driver([target, *random_requests(rng, 300, company)], 17, rng, largest_chunk=10_000)
    for i, request in enumerate(run.requests):
        probe.add(i, request)
    kept = []
    while target.generated < target.new_tokens:
        plan = run.plan()
        logits = probe.run(plan)[len(plan.prefill) :]
        if 0 in plan.decode:
            kept.append(logits[plan.decode.index(0)].clone())
        for i in run.advance(plan):
            probe.executor.remove(i)
    return torch.stack(kept)


@pytest.mark.parametrize("prompt_len", [3, 70])  # below and above k, B, and torch's thresholds for small products
@pytest.mark.parametrize(
    ("model", "system", "dtype"),
    [
        ("dsa", "hisparse_sync", "float32"),
        ("quest", "hisparse_sync", "float32"),
        ("nsa", "hisparse_sync", "float32"),
        ("dense_mla", "full_kv", "float32"),
        ("dense_gqa", "full_kv", "float32"),
        ("shared_moe", "hisparse_prefetch", "bfloat16"),
        ("exact_gqa", "hisparse_sync", "bfloat16"),
    ],
)
def test_batch_invariant_logits_do_not_depend_on_the_company(
    model: str, system: str, dtype: str, prompt_len: int
) -> None:
    alone = target_logits(model, system, dtype, prompt_len, 0)
    for others in (1, 3, 16):
        together = target_logits(model, system, dtype, prompt_len, others)
        if not torch.equal(alone, together):
            step, index = (int(x) for x in (alone != together).nonzero()[0])
            pytest.fail(
                f"first difference at decode step {step}, vocabulary index {index}: "
                f"{float(alone[step, index])!r} alone, {float(together[step, index])!r} beside {others} others"
            )


def test_the_host_pool_holds_what_was_computed_and_nothing_else() -> None:
    """Staging and write-through reach every position of the request, and no other record of the pool."""
    probe = probes("dsa", "hisparse_sync")["hisparse_sync"]
    kv = probe.kv
    assert isinstance(kv, Hierarchy)
    kv.host.records.zero_()
    written = torch.zeros(kv.host.records.shape[1], dtype=torch.bool)
    run = driver([(0, 40, 20)])
    probe.add(0, run.requests[0])
    while not run.done:
        plan = run.plan()
        probe.run(plan)
        ended = run.advance(plan)
        if not ended:
            kv.check_integrity()  # waits for what is on its way to the pool
            length = run.requests[0].prefilled + max(0, run.requests[0].generated - 1)
            written[kernels.host_records(kv.host.page_table, torch.tensor(0), torch.arange(length), kv.page_size)] = (
                True
            )
            for layer in range(kv.num_layers):
                assert kv.host.records[layer][~written].eq(0).all()
                assert kv.host.records[layer][written].ne(0).any(dim=1).all()


def scheduled_logits(
    config: Config, requests: list[Request], retract: Callable[[int, Scheduler], Iterable[int]]
) -> dict[tuple[int, int], torch.Tensor]:
    """Decode logits by (request, position fed), of a run planned by the scheduler, steps that were made twice included.

    retract(step, scheduler): whom to send back before a step. AssertionError where a repeated step has other bits.
    """
    probe = Probe(config)
    admission = make_admission(config)
    scheduler = Scheduler(admission, config.engine.max_running_requests, config.engine.prefill_chunk_tokens)
    for i, request in enumerate(requests):
        probe.add(i, request)
        scheduler.add(Job(request_id=i, prompt_len=len(request.prompt), max_new_tokens=request.new_tokens))
    seen: dict[tuple[int, int], torch.Tensor] = {}
    step = 0
    while plan := scheduler.plan():
        fed = [probe.executor._requests[i].computed for i in plan.decode]
        logits = probe.run(plan)[len(plan.prefill) :]
        for i, position, row in zip(plan.decode, fed, logits, strict=True):
            before = seen.setdefault((i, position), row.clone())
            assert torch.equal(before, row), (
                f"step {step}: position {position} of request {i} has other bits than before"
            )
        for i in scheduler.advance(plan):
            probe.executor.remove(i)
        for i in retract(step, scheduler):
            assert scheduler.retract(i)
            probe.executor.retract(i)
        probe.kv.check_integrity()
        step += 1
    probe.kv.check_idle()
    assert (admission.device_bytes, admission.host_bytes) == (0, 0)
    return seen


RETRACTED = [(0, 1, 14), (0, 45, 22), (0, 30, 18), (0, 17, 9)]


@pytest.mark.parametrize(
    ("model", "systems"),
    [
        ("dsa", ("full_kv", "hisparse_sync")),
        ("quest", ("full_kv", "fetch_all", "hisparse_sync")),
        ("shared_moe", ("full_kv", "hisparse_prefetch")),
        ("nsa", ("full_kv", "hisparse_sync")),
        pytest.param("exact_mla", ("full_kv", "fetch_all", "hisparse_sync"), marks=pytest.mark.slow),
        pytest.param("exact_gqa", ("full_kv", "fetch_all", "hisparse_sync"), marks=pytest.mark.slow),
        pytest.param("window", ("full_kv", "fetch_all", "hisparse_sync"), marks=pytest.mark.slow),
        pytest.param("dense_mla", ("full_kv", "hisparse_sync"), marks=pytest.mark.slow),
        pytest.param("dense_gqa", ("full_kv", "hisparse_sync"), marks=pytest.mark.slow),
    ],
)
def test_retraction_does_not_change_a_bit(model: str, systems: tuple[str, ...]) -> None:
    """Sent back in the middle of its prompt, after its first token, late, twice; with prompts cut at odd places. Every
    decode step, those made again too, has the logits of an undisturbed run of full KV."""
    requests = random_requests(random.Random(5), 300, RETRACTED)
    more = ["engine.batch_invariant=true", "engine.prefill_chunk_tokens=13", "engine.max_running_requests=3"]
    expected = scheduled_logits(cell_of(model, "full_kv", *more), requests, lambda step, scheduler: ())
    assert len(expected) == sum(new - 1 for _, _, new in RETRACTED)
    for system in systems:
        rng, retracted = random.Random(6), []

        def now_and_then(
            step: int, scheduler: Scheduler, rng: random.Random = rng, retracted: list[int] = retracted
        ) -> list[int]:
            chosen = [i for i in scheduler._running if rng.random() < 0.25] if 1 <= step < 24 else []
            retracted.extend(chosen)
            return chosen

        got = scheduled_logits(cell_of(model, system, *more), requests, now_and_then)
        assert len(retracted) > 8
        assert got.keys() == expected.keys()
        for key, logits in got.items():
            assert torch.equal(logits, expected[key]), f"{system}: request {key[0]}, position {key[1]}"


def test_a_retraction_that_loses_a_token_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = random_requests(random.Random(5), 300, RETRACTED)
    config = cell_of("dsa", "hisparse_sync", "engine.batch_invariant=true", "engine.max_running_requests=3")
    retract = Executor.retract

    def careless(self: Executor, request_id: int) -> None:
        retract(self, request_id)
        self._requests[request_id].tokens[-2] ^= 1

    monkeypatch.setattr(Executor, "retract", careless)
    with pytest.raises(AssertionError, match="of request 1 has other bits than before"):
        scheduled_logits(config, requests, lambda step, scheduler: [1] if step == 9 else ())
