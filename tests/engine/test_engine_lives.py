"""The whole engine under random operations: submit, step, cancel, retract, finish, flush, with memory that runs out.

Every request's greedy tokens must be those of an undisturbed run of full KV, and nothing may be left behind.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field

import pytest
from engine_cells import cell_of

from harness.engine.engine import Engine, Event, Submission
from harness.records import ServerStats
from harness.schema import Config

VOCAB = 300
LENGTHS = [(1, 30), (9, 12), (23, 40), (40, 25), (60, 60), (90, 8), (33, 1)]
# rule, and budgets under which some of a handful of requests do not fit beside the others once they have grown
TIGHT = {
    "full_output": ["engine.device_kv_budget=300KiB", "engine.host_kv_budget=120KiB"],
    "slots": ["engine.device_kv_budget=900KiB", "engine.host_kv_budget=120KiB"],
    "new_token_ratio": ["engine.device_kv_budget=300KiB", "engine.host_kv_budget=120KiB"],
}


def config_of(model: str, system: str, rule: str, *more: str) -> Config:
    base = ["engine.batch_invariant=true", "engine.prefill_chunk_tokens=24", "engine.page_size=4"]
    if model in ("dsa", "quest"):
        base.append("model.num_layers=2")
    ratio = ["engine.schedule_conservativeness=0.1"] if rule == "new_token_ratio" else []
    return cell_of(model, system, *base, *ratio, f"engine.admission={rule}", *more)


def prompt_of(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(LENGTHS[seed % len(LENGTHS)][0])]


@functools.cache
def undisturbed(model: str, seed: int) -> tuple[int, ...]:
    """Tokens of a request that has full KV for itself."""
    engine, tokens = undisturbed_engine(model), []
    new_tokens = LENGTHS[seed % len(LENGTHS)][1]

    def deliver(events: list[Event]) -> None:
        tokens.extend(event.token for event in events)

    engine.submit(Submission(prompt=prompt_of(seed), max_new_tokens=new_tokens, deliver=deliver, ignore_eos=True))
    while engine.run_once():
        pass
    assert len(tokens) == new_tokens
    return tuple(tokens)  # type: ignore[arg-type]


@functools.cache
def undisturbed_engine(model: str) -> Engine:
    return Engine(config_of(model, "full_kv", "full_output"), None)


@dataclass
class Client:
    """One request, and what it was told."""

    seed: int
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    cancelled: bool = False


@dataclass
class World:
    """An engine without its thread, its clients, and a die."""

    model: str
    engine: Engine
    rng: random.Random
    clients: dict[int, Client] = field(default_factory=dict)
    flushes: list[str | None] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)

    def live(self) -> list[int]:
        return [i for i, c in self.clients.items() if c.finish is None and not c.cancelled]

    def deliver(self, events: list[Event]) -> None:
        for event in events:
            client = self.clients[event.request_id]
            assert client.finish is None, "told something after the end"
            assert not client.cancelled
            assert event.token is not None
            client.tokens.append(event.token)
            client.finish = event.finish_reason

    def submit(self) -> None:
        seed = self.rng.randrange(20)
        submission = Submission(
            prompt=prompt_of(seed),
            max_new_tokens=LENGTHS[seed % len(LENGTHS)][1],
            deliver=self.deliver,
            ignore_eos=True,
        )
        self.clients[self.engine.submit(submission)] = Client(seed)

    def cancel(self) -> None:
        """Any request: waiting, in the middle of its prompt, decoding, retracted, ended long ago."""
        if self.clients:
            request_id = self.rng.choice(self.live() or list(self.clients))
            self.engine.cancel(request_id)
            self.drain()
            self.clients[request_id].cancelled = True

    def retract(self) -> None:
        if live := self.live():
            self.engine.retract(self.rng.choice(live))
            self.drain()

    def flush(self) -> None:
        self.drain()
        self.flushes.append(self.engine._flush_now())
        assert (self.flushes[-1] is None) == (not self.live())

    def drain(self) -> None:
        while self.engine._inbox:
            self.engine._inbox.popleft()()

    def step(self) -> None:
        if self.engine.run_once():
            self.check_bookkeeping()

    def check_bookkeeping(self) -> None:
        scheduler, executor, admission = self.engine._scheduler, self.engine._executor, self.engine._admission
        running = {i for i, r in executor._requests.items() if r.row is not None}
        assert running == set(scheduler._running) == set(admission._held)
        assert admission.device_bytes <= admission._device_budget
        assert admission.host_bytes <= admission._host_budget
        assert admission.device_bytes == sum(h.device for h in admission._held.values())
        assert admission.host_bytes == sum(h.host for h in admission._held.values())
        for i, job in scheduler._running.items():
            assert (job.computed, job.generated) == (executor._requests[i].computed, len(self.clients[i].tokens))

    def run(self, operations: int) -> None:
        choices = [(self.submit, 12), (self.step, 160), (self.cancel, 2), (self.retract, 3), (self.flush, 2)]
        names, weights = zip(*choices, strict=True)
        for count in range(operations):
            if len(self.live()) < 12 or self.rng.random() < 0.5:
                operation = self.rng.choices(names, weights)[0]
            else:
                operation = self.step
            operation()
            self.done[operation.__name__] = self.done.get(operation.__name__, 0) + 1
            if count % 50 == 0 or not self.live():
                self.engine._executor.kv.check_integrity()
            if count % 400 == 399:
                self.become_idle()
        self.become_idle()

    def become_idle(self) -> None:
        while self.live():
            self.step()
        self.drain()
        self.engine._executor.kv.check_integrity()
        self.flush()

    def check_outputs(self) -> None:
        for client in self.clients.values():
            expected = undisturbed(self.model, client.seed)
            if client.finish is not None and not client.cancelled:
                assert client.finish == "length"
                assert len(client.tokens) == len(expected)
            assert tuple(client.tokens) == expected[: len(client.tokens)], client


def run_world(model: str, system: str, rule: str, operations: int, seed: int) -> tuple[World, ServerStats]:
    engine = Engine(config_of(model, system, rule, "engine.max_running_requests=5", *TIGHT[rule]), None)
    world = World(model, engine, random.Random(seed))
    world.run(operations)
    if engine._config.offload.system.outputs_valid:
        world.check_outputs()
    stats = engine.stats()
    finished = [c for c in world.clients.values() if c.finish]
    assert len(finished) > 5
    firsts = sum(1 for c in world.clients.values() if c.tokens)
    assert stats.decode_tokens == sum(len(c.tokens) for c in world.clients.values()) - firsts
    assert set(world.done) == {"submit", "step", "cancel", "retract", "flush"}
    assert None in world.flushes
    return world, stats


@pytest.mark.parametrize(
    ("system", "rule"),
    [("full_kv", "new_token_ratio"), ("hisparse_sync", "slots"), ("hisparse_sync", "new_token_ratio")],
)
def test_a_few_hundred_operations(system: str, rule: str) -> None:
    _, stats = run_world("dsa", system, rule, 500, 1)
    assert (stats.retractions or 0) > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "system", "rule"),
    [
        ("dsa", "full_kv", "new_token_ratio"),
        ("dsa", "fetch_all", "new_token_ratio"),
        ("quest", "hisparse_sync", "slots"),
        ("shared_moe", "hisparse_prefetch", "new_token_ratio"),
        ("quest", "no_io_oracle", "slots"),
    ],
)
def test_two_thousand_operations(model: str, system: str, rule: str) -> None:
    _, stats = run_world(model, system, rule, 2000, 2)
    assert (stats.retractions or 0) > 10
