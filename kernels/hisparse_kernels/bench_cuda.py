"""What `bench` measures, on a GPU: times in microseconds by CUDA events, beside what the link can do."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

import hisparse_kernels as hk
from hisparse_kernels import bench

WARM = 3  # steps that are not counted


def measure(setting: bench.Setting, steps: int) -> dict[str, Any]:
    """Medians of `resolve`, its `match` and copies (`replay`) alone, and `dma`: one contiguous copy of as many bytes
    from pinned memory, what the link can do."""
    work = bench.Workload(setting, steps + WARM, "cuda")
    state = work.positions.cuda(), work.order.cuda()
    alone = work.positions.cuda(), work.order.cuda()
    out = hk.plan_buffer(setting.batch, setting.top_k, "cuda")
    batch, pools = (work.rows, work.seq_lens), (work.table, bench.PAGE)
    replay = work.replayer()
    count = setting.batch * setting.num_misses
    target = torch.empty(count, setting.record, dtype=torch.uint8, device="cuda")

    def resolve(step: int) -> object:
        chosen = work.selections[step]
        return hk.resolve(chosen, *batch, *state, work.cache, work.hosts[0], *pools, checked=False, out=out)

    def match(step: int) -> object:
        return hk.match(work.selections[step], *batch, *alone, checked=False, out=out)

    def dma(step: int) -> object:
        return target.copy_(work.hosts[1][:count], non_blocking=True)

    runs = {"resolve": resolve, "match": match, "replay": replay, "dma": dma}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for step in range(steps + WARM):
        for name, run in runs.items():
            times[name].append(_microseconds(run, step))
    row: dict[str, Any] = asdict(setting) | {"cache_slots": setting.num_slots, "device": "cuda", "unit": "us"}
    row |= {name: statistics.median(of[WARM:]) for name, of in times.items()}
    return row | {"over_dma": row["resolve"] / row["dma"]}


def _microseconds(run: Callable[[int], object], step: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000)  # cycles: the launches below are queued before the first of them runs
    begin.record()
    run(step)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3
