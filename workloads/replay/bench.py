"""Speed of the replay, beside libcachesim on the same stream: python -m workloads.replay.bench [--figure6]

Selections per second of one thread, in CPU seconds so that other work on the machine weighs little; then of all cores
in wall seconds, as replay spreads its streams over them, which needs an idle machine. libcachesim
(PyPI) is installed into build/libcachesim and reads the stream as a memory-mapped trace in its own process; it is
the judge of speed only where a policy means the same. It works request by request: it may evict what the step has
yet to select, where ours keeps a step's whole selection; its miss rates stand beside ours. --figure6 adds the replay
of figure 6: seven caches, 78 layers, 1000 steps, k=2048. One JSON line comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from harness.schema import LocalityConfig
from workloads.replay import POLICIES, Block, Lane, ReplayConfig, replay
from workloads.replay.lane import Int32Array
from workloads.traces.synthetic import SyntheticStream

ROOT = Path(__file__).parents[2]
RIVAL = "libcachesim==0.3.5"
RIVAL_NAMES = {
    "lru_plain": "LRU",
    "fifo": "FIFO",
    "random": "Random",
    "clock": "Clock",
    "lfu": "LFU",
    "slru": "SLRU",
    "s3fifo": "S3FIFO",
    "arc": "ARC",
    "belady": "Belady",
}
FIGURE6 = [("staging", 2048), ("fifo", 4096), ("random", 4096), ("lru", 4096), ("belady", 4096), ("lru", 8192)]
FIGURE6 += [("lru_plain", 4096)]  # a seventh of our own: the paper names six of its seven
RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])  # oracleGeneral
RIVAL_SCRIPT = """
import json, sys, time, libcachesim as l
out = {}
for name in sys.argv[3:]:
    best = None
    for _ in range(3):
        reader = l.TraceReader(sys.argv[1], l.TraceType.ORACLE_GENERAL_TRACE)
        cache = getattr(l, name)(int(sys.argv[2]), hashpower=16)
        begin = time.process_time()
        miss = cache.process_trace(reader)[0]
        spent = time.process_time() - begin
        best = spent if best is None else min(best, spent)
    out[name] = [best, miss]
print(json.dumps(out))
"""


def stream(steps: int) -> Block:
    """One layer of the glm51_longbench calibration: positions [steps, 2048] and context lengths."""
    workload = yaml.safe_load((ROOT / "conf" / "workload" / "glm51_longbench.yaml").read_text())
    locality = LocalityConfig(**workload["locality"])
    made = SyntheticStream(locality, prompt_len=workload["input_len"], steps=steps, top_k=2048)
    positions, seq_lens = zip(*made, strict=True)
    return np.concatenate(positions), np.concatenate(seq_lens)


def measure(block: Block, policy: str, slots: int, rounds: int = 3) -> tuple[float, float]:
    """CPU seconds of one replay by one thread (the best of `rounds`), and the miss rate."""
    best, rate = float("inf"), 0.0
    for _ in range(rounds):
        lane = Lane(ReplayConfig(policy, slots, tail=False))
        begin = time.thread_time()
        parts = [lane.feed(*block), lane.finish()]
        best = min(best, time.thread_time() - begin)
        selected, misses = (np.concatenate([part[i] for part in parts]) for i in range(2))
        rate = misses.sum() / selected.sum()
    return best, rate


def measure_all_cores(block: Block, policy: str, slots: int, rounds: int = 3) -> float:
    """Wall seconds of four streams per CPU, by replay's threads; the best of `rounds`, per stream."""
    cpus = len(os.sched_getaffinity(0))
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        replay(([block] for _ in range(4 * cpus)), [ReplayConfig(policy, slots, tail=False)])
        best = min(best, time.perf_counter() - begin)
    return best / (4 * cpus)


def measure_rival(positions: Int32Array, slots: int) -> dict[str, list[float]]:
    """CPU seconds and miss rate of libcachesim by class name; empty if it cannot be installed."""
    home = ROOT / "build" / "libcachesim"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", RIVAL]
    if subprocess.run(pip, check=False).returncode:
        return {}
    trace = home / "stream.oracleGeneral"
    _write_trace(positions.ravel(), positions.shape[1], trace)
    command = [str(python), "-c", RIVAL_SCRIPT, str(trace), str(slots), *RIVAL_NAMES.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _write_trace(ids: Int32Array, k: int, path: Path) -> None:
    records = np.zeros(len(ids), RECORD)
    records["time"], records["id"], records["size"], records["next"] = np.arange(len(ids)) // k, ids + 1, 1, -1
    order = np.argsort(ids, kind="stable")
    again = ids[order][1:] == ids[order][:-1]
    records["next"][order[:-1][again]] = order[1:][again]
    records.tofile(path)


def figure6(steps: int, layers: int) -> dict[str, Any]:
    """The whole figure: wall seconds of the replay alone, and of making the selections and replaying them."""
    positions, seq_lens = stream(steps)
    configs = [ReplayConfig(policy, slots) for policy, slots in FIGURE6]

    def blocks() -> Iterator[Block]:
        for at in range(0, steps, 64):
            yield positions[at : at + 64], seq_lens[at : at + 64]

    begin, cpu = time.perf_counter(), time.process_time()
    results = replay((blocks() for _ in range(layers)), configs)
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    total = len(configs) * layers * positions.size
    rates = {f"{c.policy}_{c.cache_slots}": round(r.miss_rate, 4) for c, r in zip(configs, results, strict=True)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    cpus = len(os.sched_getaffinity(0))
    seconds = {"wall_s": wall, "cpu_s": cpu, "cpus": cpus, "peak_rss_gib": peak}
    return {"selections": total, **seconds, "selections_per_s": total / wall, "miss_rates": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--figure6", action="store_true", help="replay all of figure 6 as well (a minute)")
    parser.add_argument("--layers", type=int, default=78, help="of figure 6")
    args = parser.parse_args()
    block = stream(args.steps)
    count = block[0].size
    rival = measure_rival(block[0], args.slots)
    rows = []
    print(f"{'':>12} {'M selections/s':^22} {'libca-':>7} {'ratio':^13} {'misses':^15}")
    print(f"{'policy':>12} {'a thread':>10} {'all cores':>11} {'chesim':>7}", end=" ")
    print(f"{'thread':>6} {'cores':>6} {'ours':>7} {'its':>7}")
    for policy in POLICIES:
        seconds, rate = measure(block, policy, args.slots)
        wall = measure_all_cores(block, policy, args.slots)
        row: dict[str, Any] = {"policy": policy, "miss_rate": rate}
        row |= {"selections_per_s": count / seconds, "selections_per_s_all_cores": count / wall}
        text = f"{policy:>12} {count / seconds / 1e6:10.1f} {count / wall / 1e6:11.1f}"
        if policy in RIVAL_NAMES and rival:
            theirs, their_rate = rival[RIVAL_NAMES[policy]]
            row |= {"libcachesim_per_s": count / theirs, "libcachesim_miss_rate": their_rate}
            row |= {"ratio": theirs / seconds, "ratio_all_cores": theirs / wall}
            text += f" {count / theirs / 1e6:7.1f} {theirs / seconds:6.1f} {theirs / wall:6.1f}"
            text += f" {rate:7.4f} {their_rate:7.4f}"
        else:
            text += f" {'-':>7} {'-':>6} {'-':>6} {rate:7.4f} {'-':>7}"
        print(text, flush=True)
        rows.append(row)
    whole = figure6(1000, args.layers) if args.figure6 else None
    setting = {"steps": args.steps, "cache_slots": args.slots, "top_k": 2048, "python": sys.version.split()[0]}
    print(json.dumps({"bench": "replay", "setting": setting, "rows": rows, "figure6": whole}))


if __name__ == "__main__":
    main()
