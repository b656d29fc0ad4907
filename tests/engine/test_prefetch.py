"""Prefetch, cold starts, the emulated link and late lanes: none may change a bit, and what would is caught."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import hisparse_kernels as kernels
import pytest
import torch
from engine_cells import Driver, Probe, Request, cell_of, random_requests, run_lockstep
from lane_doubles import Clock, LazyLanes, RandomLanes, with_lanes
from torch import Tensor

from harness.engine.kv import hierarchy, lanes, link
from harness.engine.kv.hisparse import HiSparse
from harness.engine.kv.lanes import Lane, Lanes, Transfer
from harness.engine.kv.prefetch import ExactPrefetch, SpeculativePrefetch
from harness.engine.kv.sharing import prefetch_label
from harness.engine.scheduler import Plan
from harness.schema import ColdStart, Config, LinkConfig, Prefetch
from harness.validate import complete

SHARING = ("model.num_layers=6", "model.index_anchors=[0, 1, 4]")  # layer 0 alone, 2 and 3 follow 1, 5 follows 4
ROWS = 4
# around k = 16 and B = 24, far longer, and sequences that grow past B; more of them than rows
LENGTHS = [(0, 90, 40), (0, 1, 40), (3, 23, 20), (8, 24, 10), (9, 25, 20), (20, 7, 30), (30, 140, 20), (40, 16, 12)]
LONG = [(4 * arrives, prompt, min(6 * new, 250 - prompt)) for arrives, prompt, new in LENGTHS]  # of a context of 256
FAST = LinkConfig(bandwidth=10**9, latency_us=3.0)


def config_of(
    system: str,
    *more: str,
    model: str = "dsa",
    prefetch: Prefetch | None = None,
    cold_start: ColdStart = ColdStart.last,
    link: LinkConfig | None = None,
) -> Config:
    config = deepcopy(cell_of(model, system, f"engine.max_running_requests={ROWS}", *more))
    config.offload.prefetch, config.offload.cold_start = prefetch, cold_start
    config.platform.link = link or LinkConfig()
    return complete(config)


def driver(seed: int = 0, lengths: list[tuple[int, int, int]] = LENGTHS) -> Driver:
    rng = random.Random(seed)
    return Driver(random_requests(rng, 300, lengths), ROWS, rng)


class Checked(Probe):
    """Looks at the whole KV state after every seventh step."""

    steps = 0

    def run(self, plan: Plan) -> Tensor:
        logits = super().run(plan)
        self.steps += 1
        if self.steps % 7 == 0:
            self.kv.check_integrity()
        return logits


def checked(config: Config, lanes: Lanes | None = None) -> Checked:
    probe = Checked(config)
    if lanes is not None:
        with_lanes(probe.kv, lanes)
    return probe


def moved(probe: Probe, *lanes: Lane) -> int:
    return sum(probe.kv.counters.bytes_moved[lane] for lane in lanes)


@pytest.mark.parametrize(
    ("lengths", "steps"), [(LENGTHS, 60), pytest.param(LONG, 300, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_no_placement_changes_a_bit_of_a_model_that_shares_selections(
    lengths: list[tuple[int, int, int]], steps: int
) -> None:
    probes: dict[str, Probe] = {
        "full_kv": checked(config_of("full_kv", *SHARING)),
        "fetch_all": checked(config_of("fetch_all", *SHARING)),
        "sync": checked(config_of("hisparse_sync", *SHARING)),
        "exact": checked(config_of("hisparse_prefetch", *SHARING)),
        "exact, empty": checked(config_of("hisparse_prefetch", *SHARING, cold_start=ColdStart.empty)),
        "exact, lazy": checked(config_of("hisparse_prefetch", *SHARING), LazyLanes()),
        "exact, any order": checked(
            config_of("hisparse_prefetch", *SHARING, cold_start=ColdStart.empty), RandomLanes(5)
        ),
        "exact, emulated": checked(config_of("hisparse_prefetch", *SHARING, link=FAST)),
        "speculative": checked(config_of("hisparse_prefetch", *SHARING, prefetch=Prefetch.speculative)),
    }
    run = driver(0, lengths)
    run_lockstep(probes, run)
    assert run.step > steps
    assert isinstance(probes["exact"].kv, ExactPrefetch)
    sync, exact = probes["sync"], probes["exact"]
    both = Lane.demand, Lane.prefetch
    assert moved(sync, Lane.prefetch) == 0 < moved(exact, Lane.prefetch)
    assert moved(sync, *both) == moved(exact, *both)
    for of in ("lookups", "misses"):  # layers in lockstep hit and miss alike
        assert getattr(sync.kv.counters, of) == getattr(exact.kv.counters, of) > 0


@pytest.mark.parametrize("model", ["dsa", "quest"])
def test_no_placement_changes_a_bit_of_a_model_that_does_not(model: str) -> None:
    speculative: dict[str, Any] = {"prefetch": Prefetch.speculative}
    empty: dict[str, Any] = {"cold_start": ColdStart.empty}

    def probe(system: str, lanes: Lanes | None = None, **settings: Any) -> Checked:
        return checked(config_of(system, model=model, **settings), lanes)

    probes: dict[str, Probe] = {
        "full_kv": probe("full_kv"),
        "fetch_all, any order": probe("fetch_all", RandomLanes(1)),
        "sync": probe("hisparse_sync"),
        "sync, empty": probe("hisparse_sync", LazyLanes(), **empty),
        "sync, emulated": probe("hisparse_sync", link=FAST),
        "exact": probe("hisparse_prefetch"),
        "speculative": probe("hisparse_prefetch", **speculative),
        "speculative, lazy": probe("hisparse_prefetch", LazyLanes(), **speculative),
        "speculative, any order": probe("hisparse_prefetch", RandomLanes(2), **speculative, **empty),
    }
    run_lockstep(probes, driver(1, LENGTHS[:6]))
    assert isinstance(probes["speculative"].kv, SpeculativePrefetch)
    assert moved(probes["speculative"], Lane.prefetch) > 0
    assert probes["exact"].kv.counters.bytes_moved == probes["sync"].kv.counters.bytes_moved  # nothing to replay
    assert probes["exact"].kv.counters.misses == probes["sync"].kv.counters.misses
    assert probes["sync, empty"].kv.counters.misses > probes["sync"].kv.counters.misses


def test_shared_layers_follow_their_anchor_in_lockstep() -> None:
    """Their slots, kept once, are those that `hisparse_sync` comes to in each of the layers by itself."""
    sync, exact = (Probe(config_of(system, *SHARING)) for system in ("hisparse_sync", "hisparse_prefetch"))
    assert isinstance(sync.kv, HiSparse)
    assert isinstance(exact.kv, HiSparse)
    assert exact.kv.owners == [0, 1, 1, 1, 4, 4]
    assert exact.kv.slot_positions.shape[0] == 3
    run = driver(2, LENGTHS[:5])
    for probe in (sync, exact):
        for i, request in enumerate(run.requests):
            probe.add(i, request)
    while not run.done:
        if plan := run.plan():
            for probe in (sync, exact):
                probe.run(plan)
        for i in run.running:
            row = sync.executor._requests[i].row
            if row is not None and run.requests[i].generated > 1:
                for layer, state in enumerate((0, 1, 1, 1, 2, 2)):
                    for name in ("slot_positions", "lru_order"):
                        assert getattr(sync.kv, name)[layer, row].equal(getattr(exact.kv, name)[state, row])
        for i in run.advance(plan):
            for probe in (sync, exact):
                probe.executor.remove(i)


def exposed_seconds(system: str, compute_s: float, monkeypatch: pytest.MonkeyPatch) -> tuple[float, Probe, int]:
    """Decode's waiting when each layer computes for so long and the link carries 100 records a second, in virtual
    time; the executor, and how many demand transfers there were."""
    clock = Clock()
    for module in (hierarchy, lanes, link):
        monkeypatch.setattr(module, "time", clock)
    probe = Probe(config_of(system, *SHARING))
    rate = 100 * probe.kv.footprint.record_bytes
    kv = with_lanes(probe.kv, LazyLanes(LinkConfig(bandwidth=rate, latency_us=1000.0)))
    append, submit, demands = kv.append, kv.lanes.submit, list[int]()

    def computed(layer: int, records: Tensor) -> None:
        clock.now += compute_s
        append(layer, records)

    def counted(lane: Lane, copy: Callable[[], object], num_bytes: int) -> Transfer:
        if lane is Lane.demand:
            demands.append(num_bytes)
        return submit(lane, copy, num_bytes)

    kv.append, kv.lanes.submit = computed, counted  # type: ignore[method-assign]
    run_lockstep({system: probe}, driver(3, [(0, 90, 30), (0, 60, 30), (0, 120, 30)]))
    return kv.counters.exposed_io_seconds, probe, len(demands)


def test_prefetch_hides_what_fits_between_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With time enough between layers all but the anchors' own misses; with none, the link is what it is."""
    waited: dict[tuple[str, float], float] = {}
    for system in ("hisparse_sync", "hisparse_prefetch", "no_io_oracle"):
        for compute_s in (0.0, 0.05, 10.0):
            seconds, probe, transfers = exposed_seconds(system, compute_s, monkeypatch)
            waited[system, compute_s] = seconds
            if compute_s == 10.0:  # nothing else is on the link: exactly the transfers that a layer waits for
                records = moved(probe, Lane.demand) / probe.kv.footprint.record_bytes
                assert seconds == pytest.approx(records / 100 + transfers * 1e-3)
    for compute_s in (0.0, 0.05, 10.0):
        assert waited["no_io_oracle", compute_s] == 0
        assert 0 < waited["hisparse_prefetch", compute_s] < waited["hisparse_sync", compute_s]
    hidden = {c: 1 - waited["hisparse_prefetch", c] / waited["hisparse_sync", c] for c in (0.0, 0.05, 10.0)}
    assert hidden[0.0] < hidden[0.05] < hidden[10.0]
    assert hidden[10.0] == pytest.approx(0.5, abs=0.05)  # 3 of 6 layers are anchors


def replays_into_the_next_layer(kv: HiSparse) -> None:
    fetch = kv._fetch
    kv._fetch = lambda lane, layer, plan: fetch(  # type: ignore[method-assign]
        lane, layer + 1 if (lane, layer) == (Lane.prefetch, 2) else layer, plan
    )


def replays_from_another_layer(kv: HiSparse) -> None:
    fetch, pool = kv._fetch, kv.host.records

    class Shifted:
        def __getitem__(self, at: int) -> Tensor:
            return pool[at - 1]

    def wrong(lane: Lane, layer: int, plan: object) -> Transfer:
        kv.host.records = Shifted() if (lane, layer) == (Lane.prefetch, 5) else pool  # type: ignore[assignment]
        try:
            return fetch(lane, layer, plan)  # type: ignore[arg-type]
        finally:
            kv.host.records = pool

    kv._fetch = wrong  # type: ignore[method-assign]


def forgets_to_wait(kv: HiSparse) -> None:
    """A shared layer does not wait for its own transfer, which is late."""
    with_lanes(kv, LazyLanes())
    wait = kv._wait

    def resolve_shared(layer: int, anchor: int, selection: Tensor) -> Tensor:
        kv._wait = (lambda *_: 0.0) if layer == 3 else wait  # type: ignore[method-assign]
        try:
            return ExactPrefetch.resolve_shared(kv, layer, anchor, selection)  # type: ignore[arg-type]
        finally:
            kv._wait = wait  # type: ignore[method-assign]

    kv.resolve_shared = resolve_shared  # type: ignore[method-assign]


def writes_through_too_late(kv: HiSparse) -> None:
    """Records reach the host pool after a fetch that needs them."""
    with_lanes(kv, LazyLanes())
    kv._settle_written = lambda plan: None  # type: ignore[method-assign]


def stages_too_late(kv: HiSparse) -> None:
    """Decode begins before the prompt's records are in the host pool."""
    with_lanes(kv, LazyLanes())
    wait, finish = kv._wait, kv.finish_prefill

    def finish_prefill(row: int, length: int) -> None:
        kv._wait = lambda *transfers: wait(*transfers[:0]) if len(transfers) > 1 else wait(*transfers)  # type: ignore
        finish(row, length)
        kv._wait = wait  # type: ignore[method-assign]

    kv.finish_prefill = finish_prefill  # type: ignore[method-assign]


def moves_nothing_on_append(kv: HiSparse) -> None:
    """A shared layer of a sequence shorter than B forgets the record that was the newest."""
    begin = kv.begin_decode

    def begin_decode(batch: object) -> None:
        begin(batch)  # type: ignore[arg-type]
        assert isinstance(kv, ExactPrefetch)
        moved = kv._moved

        class Nothing(dict[int, tuple[Tensor, Tensor]]):
            def __getitem__(self, anchor: int) -> tuple[Tensor, Tensor]:
                rows, slots = moved[anchor]
                return rows[:0], slots[:0]

            def __setitem__(self, anchor: int, value: tuple[Tensor, Tensor]) -> None:
                moved[anchor] = value

        kv._moved = Nothing()

    kv.begin_decode = begin_decode  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "fault",
    [
        replays_into_the_next_layer,
        replays_from_another_layer,
        forgets_to_wait,
        writes_through_too_late,
        stages_too_late,
        moves_nothing_on_append,
    ],
)
def test_a_fault_of_the_prefetch_is_caught(fault: Callable[[HiSparse], None]) -> None:
    probes = {system: Probe(config_of(system, *SHARING)) for system in ("full_kv", "hisparse_prefetch")}
    kv = probes["hisparse_prefetch"].kv
    assert isinstance(kv, HiSparse)
    kv.host.records.fill_(0.5)  # memory of an earlier test could hold the very records that a fault leaves out
    fault(kv)
    with pytest.raises(AssertionError, match="hisparse_prefetch differs at step"):
        run_lockstep(probes, driver(0, [(0, 90, 120), (2, 10, 100)]))


def test_a_late_hint_is_caught() -> None:
    """Speculative: a layer that resolves before its hinted records have arrived."""
    probes = {
        "full_kv": Probe(config_of("full_kv")),
        "speculative": Probe(config_of("hisparse_prefetch", prefetch=Prefetch.speculative)),
    }
    kv = with_lanes(probes["speculative"].kv, LazyLanes())
    kv.cache.fill_(0.5)
    fetch, hints = kv._fetch, set[int]()

    def kept(lane: Lane, layer: int, plan: object) -> Transfer:
        transfer = fetch(lane, layer, plan)  # type: ignore[arg-type]
        if lane is Lane.prefetch:
            hints.add(id(transfer))
        return transfer

    wait = kv._wait
    kv._fetch = kept  # type: ignore[method-assign]
    kv._wait = lambda *ts: wait(*(t for t in ts if id(t) not in hints))  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="speculative differs at step"):
        run_lockstep(probes, driver(0, [(0, 90, 120)]))


@pytest.mark.parametrize("system", ["hisparse_sync", "hisparse_prefetch"])
def test_the_integrity_check_sees_a_broken_state(system: str) -> None:
    """One fault at a time, each of another kind, in a state that was whole."""

    def swap(kv: HiSparse) -> None:
        kv.slot_positions[-1, 0, [0, 1]] = kv.slot_positions[-1, 0, [1, 0]]

    def twice(kv: HiSparse) -> None:
        kv.slot_positions[-1, 0, 0] = kv.slot_positions[-1, 0, 1]

    def order(kv: HiSparse) -> None:
        kv.lru_order[-1, 0, 0] = kv.lru_order[-1, 0, 1]

    def stale(kv: HiSparse) -> None:
        kv.cache[-1, 0, -1, 0] += 1

    def page_twice(kv: HiSparse) -> None:
        kv.host._free.append(kv.host._held[0][0])

    def row_twice(kv: HiSparse) -> None:
        kv._free_rows.append(0)

    for fault in (swap, twice, order, stale, page_twice, row_twice):
        probe = Probe(config_of(system, *SHARING))
        run = driver(0, [(0, 60, 30)])
        probe.add(0, run.requests[0])
        for _ in range(12):
            probe.run(plan := run.plan())
            run.advance(plan)
        kv = probe.kv
        assert isinstance(kv, HiSparse)
        row = probe.executor._requests[0].row
        assert row == 0
        kv.check_integrity()
        fault(kv)
        with pytest.raises(AssertionError):
            kv.check_integrity()


def test_what_a_row_says_of_its_prefetch() -> None:
    assert prefetch_label(config_of("full_kv", *SHARING)) == "none"
    assert prefetch_label(config_of("hisparse_sync", *SHARING)) == "none"
    assert prefetch_label(config_of("hisparse_prefetch", *SHARING)) == "exact"
    assert prefetch_label(config_of("no_io_oracle", *SHARING)) == "exact"
    assert prefetch_label(config_of("hisparse_prefetch")) == "none (glm_tiny with dsa shares no selections)"
    assert prefetch_label(config_of("hisparse_prefetch", prefetch=Prefetch.speculative)) == "speculative"


@pytest.mark.parametrize("link", [None, LinkConfig(bandwidth=10**9, latency_us=20_000.0)])
def test_a_write_through_that_failed_is_no_secret(link: LinkConfig | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it as long as nobody fetches its records, and yet a step soon raises what it raised: whether the
    link has it arrive at once or later."""
    probe = Probe(config_of("hisparse_sync", link=link))
    kv = probe.kv
    assert isinstance(kv, HiSparse)
    run = Driver([Request(prompt=list(range(60)), new_tokens=40)], 1, random.Random(0), largest_chunk=100)
    probe.add(0, run.requests[0])
    for _ in range(3):
        plan = run.plan()
        probe.run(plan)
        run.advance(plan)
    failed, stage = threading.Event(), kernels.stage

    def fails_once(records: torch.Tensor, pool: torch.Tensor, *rest: torch.Tensor) -> None:
        whole_pool = len(pool) == kv.num_layers * kv.host.records.shape[1]
        if whole_pool and not failed.is_set():
            failed.set()
            raise IndexError("beyond the pool")
        stage(records, pool, *rest)

    monkeypatch.setattr(kernels, "stage", fails_once)

    def until_it_raises() -> None:
        for _ in range(20):
            plan = run.plan()
            probe.run(plan)
            run.advance(plan)
            assert failed.wait(200)

    with pytest.raises(IndexError, match="beyond the pool"):
        until_it_raises()


def test_released_rows_leave_nothing_on_its_way_to_their_pages() -> None:
    """A request that ends in mid-air: what it still had to write does not reach the next owner of its pages."""
    probe = Probe(config_of("hisparse_sync"))
    kv = with_lanes(probe.kv, LazyLanes())
    run = driver(0, [(0, 40, 30), (0, 40, 30)])
    for i, request in enumerate(run.requests):
        probe.add(i, request)
    for _ in range(6):
        probe.run(plan := run.plan())
        run.advance(plan)
    pages = list(kv.host._held[probe.executor._requests[0].row])  # type: ignore[index]
    probe.executor.remove(0)
    owned = torch.tensor(pages).unsqueeze(1) * kv.page_size + torch.arange(kv.page_size)
    kv.host.records[:, owned.flatten()] = 7.0
    probe.executor.remove(1)
    kv.check_idle()
    assert (kv.host.records[:, owned.flatten()] == 7.0).all()
