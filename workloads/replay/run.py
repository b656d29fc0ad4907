"""Replay selection streams under several caches at once: threads over the (request, layer) sequences.

Only as many sequences are in memory as there are workers, and of each only a block, unless a config is `belady`,
which needs its whole sequence: the selections, a bitmap of the context for every step, and 12 bytes for whatever a
step selects and the next does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.replay.lane import Int32Array, Lane
from workloads.replay.policies import ReplayConfig

Block = tuple[Int32Array, Int32Array]  # positions [rows, k], seq_lens [rows]; see Lane.feed
Floats = NDArray[np.float64]
Stream = Iterable[Block]  # the blocks of one (request, layer) sequence


@dataclass(frozen=True)
class ReplayResult:
    """What one config did; a list entry per sequence, in the order of the streams, int32 [rows] each.

    The convention is the engine's and figure 6's: `selected` counts distinct positions, the newest included, which
    never misses; a miss rate is misses over selected, so that hits + misses = selected.
    """

    config: ReplayConfig
    selected: list[Int32Array]
    misses: list[Int32Array]

    @property
    def miss_rate(self) -> float:
        """The mean over sequences and rows of the share of a row's selection that misses, as a fraction."""
        return float(np.mean(np.concatenate([_rates(*pair) for pair in zip(self.misses, self.selected, strict=True)])))

    def per_step(self) -> Floats:
        """float64 [steps]: the miss rate of each step, averaged over the sequences, as far as all of them reach."""
        rows = min(len(m) for m in self.misses)
        pairs = zip(self.misses, self.selected, strict=True)
        return np.mean([step_rates(s[:rows], m[:rows], self.config.tokens) for m, s in pairs], axis=0)


def step_rates(selected: Int32Array, misses: Int32Array, tokens: int) -> Floats:
    """float64 [rows / tokens]: the miss rate of each step, all its tokens together, of one sequence."""
    shape = (-1, tokens)
    return _rates(misses.reshape(shape).sum(axis=1), selected.reshape(shape).sum(axis=1))


def _rates(misses: NDArray[np.integer], selected: NDArray[np.integer]) -> Floats:
    return misses / np.maximum(selected, 1)


def replay(
    streams: Iterable[Stream], configs: Sequence[ReplayConfig], *, workers: int | None = None
) -> list[ReplayResult]:
    """Replay every stream under every config; one result per config, in their order.

    streams: one per (request, layer); taken and read lazily, `workers` at a time (default: the CPUs), each by one
    thread. Equal whatever `workers` is and however a stream is cut into blocks. Raises ValueError.
    """
    workers = workers or len(os.sched_getaffinity(0))
    done: dict[int, list[Block]] = {}
    with ThreadPoolExecutor(workers) as pool:
        for number, future in _in_flight(pool, streams, configs, workers):
            done[number] = future.result()
    order = sorted(done)
    return [
        ReplayResult(config, [done[n][i][0] for n in order], [done[n][i][1] for n in order])
        for i, config in enumerate(configs)
    ]


def _in_flight(
    pool: ThreadPoolExecutor, streams: Iterable[Stream], configs: Sequence[ReplayConfig], workers: int
) -> Iterator[tuple[int, Future[list[Block]]]]:
    """Submit streams while fewer than `workers` run; yield each with its number as it ends."""
    running: dict[Future[list[Block]], int] = {}
    for number, stream in enumerate(streams):
        running[pool.submit(replay_stream, stream, configs, number)] = number
        while len(running) >= workers:
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            yield from ((running.pop(future), future) for future in ended)
    yield from ((number, future) for future, number in running.items())


def replay_stream(stream: Stream, configs: Sequence[ReplayConfig], number: int = 0) -> list[Block]:
    """One stream under every config: per config the selected and missed counts of its rows."""
    lanes = [Lane(config, number) for config in configs]
    parts: list[list[Block]] = [[] for _ in configs]
    for positions, seq_lens in stream:
        for lane, part in zip(lanes, parts, strict=True):
            part.append(lane.feed(positions, seq_lens))
    for lane, part in zip(lanes, parts, strict=True):
        part.append(lane.finish())
    return [(np.concatenate([p[0] for p in part]), np.concatenate([p[1] for p in part])) for part in parts]
