"""Speed of the replay, beside libcachesim on the same stream: python -m workloads.replay.bench [--figure6]

Selections per second of one thread, in CPU seconds so that other work on the machine weighs little; then of all cores
in wall seconds, as replay spreads its streams over them, which needs an idle machine. Medians of rounds in which all
take turns. libcachesim (PyPI), which has one thread, is installed into build/libcachesim and reads the same accesses
as a memory-mapped trace in its own process, by its C++ loop: as it comes (its hash table has 2 to the 24 buckets), and
with tables of sizes that suit the cache, of which the fastest counts as its best for each policy. It is the judge of
speed only where a policy means the same. It works request by request: it may evict what the step has yet to select,
where ours keeps a step's whole selection; its miss rates stand beside ours.
--figure6 adds the replay of figure 6: seven caches, 78 layers, 1000 steps, k=2048. One JSON line comes last.
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
from statistics import median
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
    out[name] = {}
    for power in [None, *POWERS]:
        reader = l.TraceReader(sys.argv[1], l.TraceType.ORACLE_GENERAL_TRACE)
        cache = getattr(l, name)(int(sys.argv[2]), **({"hashpower": power} if power else {}))
        begin = time.process_time()
        miss = cache.process_trace(reader)[0]
        out[name][power or "default"] = [time.process_time() - begin, miss]
print(json.dumps(out))
"""
RIVAL_POWERS = (1, 2, 4)  # its hash table has 2 to the power of this many buckets a slot


def stream(steps: int) -> Block:
    """One layer of the glm51_longbench calibration: positions [steps, 2048] and context lengths."""
    workload = yaml.safe_load((ROOT / "conf" / "workload" / "glm51_longbench.yaml").read_text())
    locality = LocalityConfig(**workload["locality"])
    made = SyntheticStream(locality, prompt_len=workload["input_len"], steps=steps, top_k=2048)
    positions, seq_lens = zip(*made, strict=True)
    return np.concatenate(positions), np.concatenate(seq_lens)


def measure(block: Block, policy: str, slots: int) -> tuple[float, float]:
    """CPU seconds of one replay by one thread, and the miss rate."""
    lane = Lane(ReplayConfig(policy, slots, tail=False))
    begin = time.thread_time()
    parts = [lane.feed(*block), lane.finish()]
    seconds = time.thread_time() - begin
    selected, misses = (np.concatenate([part[i] for part in parts]) for i in range(2))
    return seconds, misses.sum() / selected.sum()


def measure_all_cores(block: Block, policy: str, slots: int) -> float:
    """Wall seconds of four streams per CPU, by replay's threads, per stream."""
    cpus = len(os.sched_getaffinity(0))
    begin = time.perf_counter()
    replay(([block] for _ in range(4 * cpus)), [ReplayConfig(policy, slots, tail=False)])
    return (time.perf_counter() - begin) / (4 * cpus)


class Rival:
    """libcachesim in a virtual environment of its own, with the stream as a trace."""

    def __init__(self, positions: Int32Array, slots: int):
        home = ROOT / "build" / "libcachesim"
        self._python = home / "bin" / "python"
        if not self._python.exists():
            venv.create(home, with_pip=True)
        pip = [str(self._python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", RIVAL]
        self.there = subprocess.run(pip, check=False).returncode == 0
        self._trace, self._slots = home / "stream.oracleGeneral", slots
        _write_trace(positions.ravel(), positions.shape[1], self._trace)

    def measure(self) -> dict[str, dict[str, list[float]]]:
        """CPU seconds and miss rate by class name and the logarithm of the table's buckets."""
        powers = [(self._slots - 1).bit_length() + more for more in RIVAL_POWERS]
        script = RIVAL_SCRIPT.replace("POWERS", repr(powers))
        command = [str(self._python), "-c", script, str(self._trace), str(self._slots), *RIVAL_NAMES.values()]
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


def compare(block: Block, slots: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Every policy's rates, and libcachesim's at its fastest table: a JSON row each."""
    rival = Rival(block[0], slots)
    theirs, ours = [], []
    for _ in range(rounds):
        theirs += [rival.measure()] if rival.there else []
        ours.append({p: (*measure(block, p, slots), measure_all_cores(block, p, slots)) for p in POLICIES})
    count = block[0].size
    for policy in POLICIES:
        thread, rate, cores = (median(one[policy][i] for one in ours) for i in range(3))
        row: dict[str, Any] = {"policy": policy, "miss_rate": rate}
        row |= {"selections_per_s": count / thread, "selections_per_s_all_cores": count / cores}
        if policy in RIVAL_NAMES and theirs:
            name = RIVAL_NAMES[policy]
            by_table = {power: median(one[name][power][0] for one in theirs) for power in theirs[0][name]}
            default = by_table.pop("default")
            power = min(by_table, key=lambda table: by_table[table])
            row |= {"libcachesim_per_s": count / by_table[power], "libcachesim_miss_rate": theirs[0][name][power][1]}
            row |= {"libcachesim_hashpower": int(power), "libcachesim_default_per_s": count / default}
            row |= {"ratio": by_table[power] / thread, "ratio_all_cores": by_table[power] / cores}
            row |= {"ratio_to_default": default / thread, "ratio_to_default_all_cores": default / cores}
        yield row


HEADER = """\
              M selections/s  libcachesim, M/s times its best  its default      misses
      policy   thread    cores     best default  thread  cores thread  cores    ours     its"""


def show(row: dict[str, Any]) -> str:
    """A line of the table under HEADER."""
    thread, cores = (row[key] / 1e6 for key in ("selections_per_s", "selections_per_s_all_cores"))
    text = f"{row['policy']:>12} {thread:8.1f} {cores:8.1f}"
    if "ratio" not in row:
        return text + f" {'-':>8} {'-':>7} {'-':>7} {'-':>6} {'-':>6} {'-':>6} {row['miss_rate']:7.4f} {'-':>7}"
    text += f" {row['libcachesim_per_s'] / 1e6:8.1f} {row['libcachesim_default_per_s'] / 1e6:7.1f}"
    text += f" {row['ratio']:7.1f} {row['ratio_all_cores']:6.1f}"
    text += f" {row['ratio_to_default']:6.1f} {row['ratio_to_default_all_cores']:6.1f}"
    return text + f" {row['miss_rate']:7.4f} {row['libcachesim_miss_rate']:7.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--figure6", action="store_true", help="replay all of figure 6 as well (a minute)")
    parser.add_argument("--layers", type=int, default=78, help="of figure 6")
    args = parser.parse_args()
    print(HEADER)
    rows = []
    for row in compare(stream(args.steps), args.slots, args.rounds):
        print(show(row), flush=True)
        rows.append(row)
    whole = figure6(1000, args.layers) if args.figure6 else None
    setting = {"steps": args.steps, "cache_slots": args.slots, "top_k": 2048, "python": sys.version.split()[0]}
    setting |= {"rounds": args.rounds, "cpus": len(os.sched_getaffinity(0))}
    print(json.dumps({"bench": "replay", "setting": setting, "rows": rows, "figure6": whole}))


if __name__ == "__main__":
    main()
