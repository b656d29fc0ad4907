"""What a fetch of records costs over the memory-copy link, and how late a thread wakes that waits for a slower one."""

from __future__ import annotations

import statistics
import time

import torch
from hisparse_kernels import Plan

from harness.calibration.engine_steps import Stepper, roomy
from harness.calibration.terms import Fit, fit
from harness.engine.kv.hierarchy import Hierarchy
from harness.engine.kv.lanes import Lane
from harness.engine.kv.link import Link
from harness.schema import Config, LinkConfig

_SIZES = (1, 4, 16, 64)  # records of one fetch
_ROUNDS = 40
_NAP_S = 500e-6


def time_fetches(config: Config) -> Fit:
    """(seconds of a layer's fetch, seconds of each record): submitted on demand and waited for, as a layer does."""
    stepper = Stepper(roomy(config, 1))
    prompt_len = min(config.workload.input_len, config.context_len - 4)
    stepper.fill(1, prompt_len, 4)
    kv = stepper.executor.kv
    assert isinstance(kv, Hierarchy)
    (row,) = kv._held_rows
    sizes = [size for size in _SIZES if size <= min(kv.num_slots, prompt_len)]
    rows, seconds = [], []
    with torch.inference_mode():
        for size in sizes:
            times = []
            for turn in range(_ROUNDS):
                positions = torch.randperm(prompt_len)[:size]
                plan = Plan(
                    torch.full((size,), row), torch.arange(size), positions, torch.tensor([size], dtype=torch.int64)
                )
                begin = time.perf_counter()
                kv._wait(kv._fetch(Lane.demand, turn % kv.num_layers, plan))
                times.append(time.perf_counter() - begin)
            rows.append((1.0, float(size)))
            seconds.append(statistics.median(times))
    return fit(rows, seconds)


def time_waking() -> float:
    """Mean seconds that a thread wakes late from a wait for the emulated link."""
    link = Link(LinkConfig(bandwidth=1))
    late = []
    for _ in range(200):
        until = time.perf_counter() + _NAP_S
        link.sleep_until(until)
        late.append(time.perf_counter() - until)
    return statistics.mean(late)
