"""Random lives of requests over each KV side: every record read is the request's own, everything comes back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from engine_cells import SYSTEMS, cell_of
from torch import Tensor

from harness.engine.admission import FullOutput
from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.kv import make_kv
from harness.engine.kv.base import KVSide
from harness.schema import Config

K = 16


@dataclass
class Life:
    """A request and every record it should have."""

    row: int
    prompt_len: int
    total: int
    records: Tensor  # [L, total, W]
    length: int = 0

    @property
    def in_prefill(self) -> bool:
        return self.length < self.prompt_len


@dataclass
class World:
    """A KV side with requests at random stages, and the ledger that lets them in."""

    config: Config
    rng: random.Random
    lives: dict[int, Life] = field(default_factory=dict)
    refused: int = 0
    finished: int = 0
    cancelled: int = 0
    decoded: int = 0
    next_id: int = 0

    def __post_init__(self) -> None:
        self.kv: KVSide = make_kv(self.config)
        self.ledger = FullOutput(self.config)
        self.checks_bytes = self.config.offload.system.outputs_valid

    def admit(self) -> None:
        prompt, new = self.rng.choice([(1, 5), (10, 20), (30, 30), (60, 90), (120, 8)])
        self.next_id += 1
        if len(self.lives) == self.kv.num_rows or not self.ledger.reserve(self.next_id, prompt, new):
            self.refused += 1
            return
        row = self.kv.admit(prompt + new)
        assert row not in {life.row for life in self.lives.values()}
        records = torch.randn(self.kv.num_layers, prompt + new, self.kv.width)
        self.lives[self.next_id] = Life(row, prompt, prompt + new, records)

    def prefill(self) -> None:
        todo = [life for life in self.lives.values() if life.in_prefill]
        if not todo:
            return
        life = self.rng.choice(todo)
        length = min(self.rng.randint(1, 37), life.prompt_len - life.length)
        batch = ChunkBatch.of(life.row, life.length, length)
        self.kv.begin_chunk(batch)
        for layer in range(self.kv.num_layers):
            self.kv.stage(layer, life.records[layer, batch.start : batch.end])
            assert torch.equal(self.kv.prefix(layer), life.records[layer, : batch.end])
        life.length = batch.end
        if not life.in_prefill:
            self.kv.finish_prefill(life.row, life.length)

    def decode(self) -> None:
        able = [life for life in self.lives.values() if not life.in_prefill and life.length < life.total]
        if not able:
            return
        batch_lives = self.rng.sample(able, self.rng.randint(1, len(able)))
        for life in batch_lives:
            life.length += 1
        batch = DecodeBatch.of([life.row for life in batch_lives], [life.length for life in batch_lives])
        width = min(K, batch.max_len)
        self.kv.begin_decode(batch)
        self.decoded += 1
        for layer in range(self.kv.num_layers):
            self.kv.append(layer, torch.stack([life.records[layer, life.length - 1] for life in batch_lives]))
            chosen = [self._select(life.length, width) for life in batch_lives]
            got = self.kv.gather(layer, self.kv.resolve(layer, torch.tensor(chosen, dtype=torch.int32)))
            for i, life in enumerate(batch_lives):
                for j, position in enumerate(chosen[i]):
                    if position >= 0 and self.checks_bytes:
                        assert torch.equal(got[i, j], life.records[layer, position]), (layer, i, position)

    def _select(self, length: int, width: int) -> list[int]:
        """A window that moves, so that some are hits, in random order with holes."""
        pool = range(max(0, length - 40), length) if self.rng.random() < 0.7 else range(length)
        chosen = self.rng.sample(pool, min(len(pool), self.rng.randint(1, width)))
        holes = [-1] * (width - len(chosen))
        return self.rng.sample(chosen + holes, width)

    def leave(self, *, cancel: bool) -> None:
        ended = [i for i, life in self.lives.items() if cancel or life.length == life.total]
        if not ended:
            return
        request_id = self.rng.choice(ended)
        self.kv.release(self.lives.pop(request_id).row)
        self.ledger.release(request_id)
        self.finished += not cancel
        self.cancelled += cancel


@pytest.mark.parametrize(
    ("system", "operations"), [("hisparse_sync", 2000), ("full_kv", 800), ("fetch_all", 800), ("no_io_oracle", 400)]
)
def test_random_lives_read_their_own_records_and_give_everything_back(system: str, operations: int) -> None:
    torch.manual_seed(0)
    # tight: admission is refused for device bytes (full_kv) or host bytes (the rest) again and again
    tight = ["engine.device_kv_budget=500KiB", "engine.host_kv_budget=200KiB", "engine.max_running_requests=6"]
    world = World(cell_of("dsa", system, "model.num_layers=2", *tight), random.Random(1))
    for _ in range(operations):
        dice = world.rng.random()
        if dice < 0.12:
            world.admit()
        elif dice < 0.35:
            world.prefill()
        elif dice < 0.93:
            world.decode()
        else:
            world.leave(cancel=dice > 0.985)
    assert min(world.refused, world.finished, world.cancelled) > 0
    assert world.decoded > operations // 4
    if world.lives:
        with pytest.raises(AssertionError):
            world.kv.check_idle()  # it does see what is held
    while world.lives:
        world.leave(cancel=True)
    world.kv.check_idle()
    assert (world.ledger.device_bytes, world.ledger.host_bytes) == (0, 0)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_row_given_back_twice_is_noticed(system: str) -> None:
    kv = make_kv(cell_of("dsa", system))
    row = kv.admit(10)
    kv.release(row)
    with pytest.raises(KeyError):
        kv.release(row)
    kv.check_idle()


@pytest.mark.parametrize("system", SYSTEMS)
def test_admitting_more_than_the_ledger_would_is_noticed(system: str) -> None:
    config = cell_of("dsa", system, "engine.device_kv_budget=200KiB", "engine.host_kv_budget=200KiB")
    kv, ledger, fits = make_kv(config), FullOutput(config), 0
    while ledger.reserve(fits, 90, 10):
        kv.admit(100)
        fits += 1
    assert fits > 0

    def admit_on() -> None:
        for _ in range(100):  # a row or two may be left where state, not records, was what ran out
            kv.admit(100)

    with pytest.raises(AssertionError, match="ran out|more requests admitted than rows"):
        admit_on()
