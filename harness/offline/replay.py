"""Selections replayed under one replacement policy: the miss rate, step by step, and how fast that goes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from harness.offline.base import Measurement, OfflineError
from harness.offline.streams import streams
from harness.replay_rules import replay_setting
from harness.schema import Config
from harness.store import STEPS_FILE, encode_steps
from workloads.replay import Block, Lane, ReplayConfig, step_rates

Int32 = NDArray[np.int32]
_Replayed = tuple[Int32, Int32, float]  # selected and missed positions of each row, seconds


def measure_replay(config: Config, concurrency: int, repeat: int) -> Measurement:
    """Misses of every (request, layer) of the workload, which has a cache of its own; averaged over all of them.

    A repeat of a synthetic workload has requests of its own. Raises OfflineError for a damaged trace and where
    nothing can be compiled.
    """
    from hisparse_kernels.build import BuildUnavailable  # imports torch

    setting = replay_setting(config)
    workers = max(1, int(config.platform.num_cpus))
    try:
        with ThreadPoolExecutor(workers) as pool:
            lanes = enumerate(streams(config, concurrency, repeat))
            done = list(pool.map(lambda lane: _replay(lane[1], setting, lane[0]), lanes))
    except (BuildUnavailable, ValueError) as error:  # ValueError: TraceError among them
        raise OfflineError(str(error)) from error
    return _summary(done, setting.tokens)


def _replay(stream: Iterable[Block], setting: ReplayConfig, number: int) -> _Replayed:
    """One sequence; the seconds are this thread's CPU time, without what making or reading the selections takes."""
    lane, seconds = Lane(setting, number), 0.0
    parts: list[Block] = []
    for selections, context_lens in stream:
        begin = time.thread_time()
        parts.append(lane.feed(selections, context_lens))
        seconds += time.thread_time() - begin
    begin = time.thread_time()
    parts.append(lane.finish())
    seconds += time.thread_time() - begin
    selected, missed = (np.concatenate(part) for part in zip(*parts, strict=True))
    return selected, missed, seconds


def _summary(done: list[_Replayed], tokens: int) -> Measurement:
    rates = [missed / np.maximum(selected, 1) for selected, missed, _ in done]
    steps = [step_rates(selected, missed, tokens) for selected, missed, _ in done]
    longest = max(map(len, steps))
    total, count = np.zeros(longest), np.zeros(longest, dtype=np.int64)
    for rate in steps:
        total[: len(rate)] += rate
        count[: len(rate)] += 1
    per_step = total / count
    looked_up = sum(int(selected.sum()) for selected, _, _ in done)
    return Measurement(
        measures={
            "miss_rate": float(np.concatenate(rates).mean()),
            "first_step_miss_rate": float(per_step[0]),
            "replayed_selections": looked_up,
            "selections_per_s": looked_up / sum(seconds for _, _, seconds in done),
        },
        files={
            STEPS_FILE: encode_steps(
                {"step": range(longest), "miss_rate": per_step.tolist(), "sequences": count.tolist()}
            )
        },
    )
