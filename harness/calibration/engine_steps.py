"""Decode steps and prompt chunks of one kind of cell, timed in an engine that is otherwise as a server runs it.

The host link is a memory copy here, whatever the cell's is: what an emulated one adds is arithmetic
(`harness.simulation.link_time`). Requests of random ids, as the workload would send them, fill the engine, decode
together for a few steps, and leave it in turn.
"""

from __future__ import annotations

import copy
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.engine.engine import Engine, Event, Submission
from harness.engine.footprint import Footprint
from harness.engine.kv.lanes import Lane
from harness.engine.scheduler import Plan
from harness.schema import Config, LinkConfig
from harness.weights import weights_folder

STEPS = 12  # timed decode steps of each batch
WARM_UP = 3
LONE_PROMPTS = 4  # of each other length


@dataclass(frozen=True, slots=True)
class DecodeTiming:
    """Medians over some decode steps of one batch. `records` and `fetches`: on demand, of all layers, a step."""

    requests: int
    context: float  # mean positions of a request
    records: float
    fetches: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ChunkTiming:
    """The chunks of one step together: sums over them."""

    chunks: int
    tokens: int
    positions: int  # up to each chunk's end
    pairs: int  # tokens x positions up to the chunk's end
    prompts: int  # that ended
    seconds: float


def roomy(config: Config, requests: int) -> Config:
    """The cell with room for so many of its longest requests, over a memory-copy link."""
    config = copy.deepcopy(config)
    need = Footprint(config).request(config.context_len)
    config.platform.link = LinkConfig()
    config.engine.max_running_requests = max(requests, config.engine.max_running_requests)
    config.engine.device_kv_budget = need.device * (requests + 1) + Footprint(config).workspace
    config.engine.host_kv_budget = max(1, need.host * (requests + 1))
    return config


class Stepper:
    """An engine driven step by step from here."""

    def __init__(self, config: Config, seed: int = 0):
        self.config = config
        self.engine = Engine(config, weights_folder(config.model.weights))
        self.executor = self.engine._executor
        self.chunks: list[ChunkTiming] = []
        self._rng = random.Random(seed)
        self._live: list[int] = []
        self._fetches = 0
        self._positions: dict[int, int] = {}
        self._watch()

    def fill(self, count: int, prompt_len: int, output_len: int) -> None:
        """Compute the prompts of that many requests, timing their chunks."""
        for _ in range(count):
            prompt = [self._rng.randrange(self.config.model.vocab_size) for _ in range(prompt_len)]
            request = Submission(prompt=prompt, max_new_tokens=output_len, deliver=_drop, ignore_eos=True)
            self._live.append(self.engine.submit(request))
        done = self._prefilled()
        while self._prefilled() < done + count * prompt_len:
            self.step()

    def alone(self, prompt_len: int) -> float:
        """Seconds of the prompt of a request that leaves after it; the engine must be empty."""
        before = len(self.chunks)
        self.fill(1, prompt_len, 2)
        self.engine.cancel(self._live.pop())
        self.step()
        return sum(chunk.seconds for chunk in self.chunks[before:])

    def decode(self, requests: int, steps: int = STEPS) -> DecodeTiming:
        """Steps of the oldest so many requests, the others having left."""
        while len(self._live) > requests:
            self.engine.cancel(self._live.pop())
            self.step()
        for _ in range(WARM_UP):
            self.step()
        before, fetches = self.engine.stats(), self._fetches
        seconds = [self.step() for _ in range(steps)]
        after = self.engine.stats()
        moved = ((after.demand_bytes or 0) - (before.demand_bytes or 0)) / self.executor.kv.footprint.record_bytes
        return DecodeTiming(
            requests=requests,
            context=statistics.mean(self._positions.values()) - steps / 2,
            records=moved / steps,
            fetches=(self._fetches - fetches) / steps,
            seconds=statistics.median(seconds),
        )

    def step(self) -> float:
        """Seconds of one engine step, from planning to delivery."""
        begin = time.perf_counter()
        ran = self.engine.run_once()
        took = time.perf_counter() - begin
        assert ran, "the requests have ended"
        if self.engine.failure:
            raise RuntimeError(self.engine.failure)
        return took

    def _prefilled(self) -> int:
        return self.engine.stats().prefill_tokens or 0

    def _watch(self) -> None:
        """Note the plan of every step with its times, and every fetch on demand."""
        run, submit = self.executor.run, getattr(self.executor.kv, "_submit", None)

        def timed(plan: Plan) -> Any:
            result = run(plan)
            self._positions = {i: self.executor._requests[i].computed for i in plan.decode}
            if plan.prefill:
                ends = [(c.length, c.start + c.length) for c in plan.prefill]
                self.chunks.append(
                    ChunkTiming(
                        chunks=len(ends),
                        tokens=sum(length for length, _ in ends),
                        positions=sum(end for _, end in ends),
                        pairs=sum(length * end for length, end in ends),
                        prompts=sum(c.is_last for c in plan.prefill),
                        seconds=result.prefill_seconds,
                    )
                )
            return result

        def counted(lane: Lane, *arguments: Any) -> Any:
            self._fetches += lane is Lane.demand
            return submit(lane, *arguments)  # type: ignore[misc]

        self.executor.run = timed  # type: ignore[method-assign]
        if submit:
            self.executor.kv._submit = counted  # type: ignore[attr-defined]


def batches(most: int) -> list[int]:
    """Batch sizes to time, largest first: powers of two, and the most."""
    sizes = {1 << power for power in range(most.bit_length())}
    return sorted({size for size in sizes if size <= most} | {most}, reverse=True)


def time_steps(config: Config, most: int, seed: int) -> tuple[list[DecodeTiming], list[ChunkTiming]]:
    """Decode steps at two contexts, of batches up to `most`; the chunks of the prompts before them, and of others."""
    decodes: list[DecodeTiming] = []
    chunks: list[ChunkTiming] = []
    sizes = batches(most)
    output_len = len(sizes) * (STEPS + WARM_UP + 1) + 2 * most + 2
    long = min(config.workload.input_len, config.context_len - output_len)
    short = max(2, long // 4)
    for prompt_len in (long, short):
        room = roomy(config, most)
        if prompt_len == short:  # chunks of two lengths here, of which one ends no prompt
            room.engine.prefill_chunk_tokens = max(1, min(room.engine.prefill_chunk_tokens, 2 * short // 3))
        stepper = Stepper(room, seed)
        stepper.fill(most, prompt_len, output_len)
        decodes += [stepper.decode(size) for size in sizes]
        chunks += stepper.chunks
    stepper = Stepper(roomy(config, 1), seed)
    for prompt_len in (long // 2, long // 8) * LONE_PROMPTS:
        stepper.alone(max(1, prompt_len))
    return decodes, chunks + stepper.chunks


def warm(config: Config) -> None:
    """Compile kernels and touch code once, untimed."""
    stepper = Stepper(roomy(config, 1))
    stepper.fill(1, min(32, config.context_len - 4), 3)
    stepper.step()


def _drop(events: Sequence[Event]) -> None:
    """Nobody listens."""
