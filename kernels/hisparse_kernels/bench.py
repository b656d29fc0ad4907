"""Time per phase of resolve, beside the torch reference and the floor: python -m hisparse_kernels.bench

A table, then one JSON line. Sweeps, around k=2048, B=4096, batch 1, 13% misses and 1152-byte records: B/k, batch, miss
rate, record size (the four models of the paper's figure 7, and FP8 records), and the number of threads. The *floor*
reads the selection once and copies the missed bytes with plain memcpy, on the same cores and between the same places.
Every round runs ours, floor and reference in turn, so that what else the machine does hits all three; each has a host
pool of its own, so that none finds its records in a CPU cache because another has just read them (the reference does,
to its favour). Medians; ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

import hisparse_kernels as hk
from hisparse_kernels import build
from hisparse_kernels.reference import host_records

PHASES = ("stage", "probe", "publish", "order", "fetch")
# (top-k, record bytes) of figure 7's models, which serve with BF16 caches; V4 selects compressed entries.
FIGURE_7 = {
    "glm-5.1": (2048, 1152),
    "deepseek-v4-flash": (512, 1024),
    "deepseek-v4-pro": (1024, 1024),
    "qwen3-30b-a3b": (2048, 2048),
}
FP8_RECORDS = (656, 584)  # MLA and V4 with FP8 caches
PAGE = 64


@dataclass(frozen=True)
class Setting:
    """One measurement."""

    sweep: str
    model: str = "glm-5.1"
    top_k: int = 2048
    ratio: float = 2  # B / k
    batch: int = 1
    misses: float = 0.13
    record: int = 1152
    context: int = 32768
    threads: int = 1

    @property
    def num_slots(self) -> int:
        return round(self.top_k * self.ratio)

    @property
    def num_misses(self) -> int:
        """Per request; at B = k every evictable slot is one that was not hit, so any rate is possible."""
        return max(1, round(self.top_k * self.misses))


def settings(quick: bool) -> list[Setting]:
    """What is measured: one axis at a time around the usual setting."""
    usual = Setting("usual")
    found = [usual]
    found += [replace(usual, sweep="ratio", ratio=r) for r in (1, 2, 3, 4)]
    found += [replace(usual, sweep="batch", batch=b, context=16384) for b in (1, 4, 16, 64)]
    found += [replace(usual, sweep="misses", misses=m) for m in (0.001, 0.01, 0.05, 0.13, 0.25, 0.5)]
    for name, (top_k, record) in FIGURE_7.items():
        found.append(replace(usual, sweep="model", model=name, top_k=top_k, record=record))
        found += [
            replace(usual, sweep="figure 7", model=name, top_k=top_k, record=record, ratio=r, batch=16)
            for r in (1, 2, 4)
        ]
    found += [replace(usual, sweep="record", model="fp8", record=record) for record in FP8_RECORDS]
    found += [replace(usual, sweep="threads", misses=1000 / 2048, threads=t) for t in (1, 2)]
    return [s for s in found if s.sweep in ("usual", "threads")] if quick else found


class Workload:
    """A batch in its steady state, and selections of which the wanted share misses at every step."""

    def __init__(self, s: Setting, steps: int, device: str):
        g = torch.Generator().manual_seed(0)
        self.setting, self.device = s, device
        pages = s.context // PAGE
        shape, pinned = (s.batch * s.context, s.record), device != "cpu"
        self.hosts = [torch.full(shape, i + 1, dtype=torch.uint8, pin_memory=pinned) for i in range(4)]
        table = torch.randperm(s.batch * pages, generator=g).view(s.batch, pages).int()
        positions = torch.stack([torch.randperm(s.context - 1, generator=g)[: s.num_slots] for _ in range(s.batch)])
        order = torch.stack([torch.randperm(s.num_slots, generator=g) for _ in range(s.batch)])
        self.positions, self.order = positions.int(), order.int()
        self.rows = torch.arange(s.batch)
        self.seq_lens = torch.full((s.batch,), s.context, dtype=torch.int32)
        self.selections: list[Tensor] = []
        self.plans: list[hk.Plan] = []
        state = self.positions.clone(), self.order.clone()
        for _ in range(steps):
            selection = torch.stack([self._select(row, g) for row in state[0]])
            _, plan = hk.match(selection, self.rows, self.seq_lens, *state)
            self.selections.append(selection.to(device))
            self.plans.append(hk.Plan(*(t.to(device) for t in plan)))
        self.sources = [host_records(table, p.rows.cpu(), p.positions.cpu(), PAGE) for p in self.plans]
        self.targets = [p.rows.cpu() * (s.num_slots + 1) + p.slots.cpu() for p in self.plans]
        self.cache = torch.zeros(s.batch, s.num_slots + 1, s.record, dtype=torch.uint8, device=device)
        self.rows, self.seq_lens, self.table = (t.to(device) for t in (self.rows, self.seq_lens, table))

    def _select(self, positions: Tensor, g: torch.Generator) -> Tensor:
        s = self.setting
        held = positions[torch.randperm(s.num_slots, generator=g)[: s.top_k - s.num_misses]]
        free = torch.ones(s.context - 1, dtype=torch.bool)
        free[positions.long()] = False
        new = free.nonzero().squeeze(1)
        new = new[torch.randperm(len(new), generator=g)[: s.num_misses]].int()
        return torch.cat([held, new])[torch.randperm(s.top_k, generator=g)]

    def resolver(self, pool: int = 0, record: bool = False) -> Callable[[int], Any]:
        """resolve(step) on a state of its own; without a plan, as where no layer shares the selection."""
        state = self.positions.clone().to(self.device), self.order.clone().to(self.device)
        batch, pools = (self.rows, self.seq_lens), (self.cache, self.hosts[pool], self.table)

        def run(step: int) -> Any:
            return hk.resolve(self.selections[step], *batch, *state, *pools, PAGE, checked=False, record=record)

        return run

    def replayer(self) -> Callable[[int], object]:
        return lambda step: hk.replay(self.plans[step], self.cache, self.hosts[2], self.table, PAGE)

    def floor(self) -> Callable[[int], object]:
        """Read the selection once and memcpy what is missing; on the CPU by a C loop over the same addresses."""
        module = build.load("cpu")
        cache = torch.zeros(self.cache.shape, dtype=torch.uint8)
        threads = self.setting.threads

        def run(step: int) -> object:
            places = self.hosts[1], self.sources[step], cache, self.targets[step]
            return module.floor(self.selections[step], *places, threads)

        return run


def measure(s: Setting, rounds: int, with_reference: bool) -> dict[str, Any]:
    """Medians in microseconds on the CPU."""
    torch.set_num_threads(s.threads)
    warm = 3
    work = Workload(s, rounds + warm, "cpu")
    with hk.use_backend("auto"):
        resolve, replay, floor = work.resolver(), work.replayer(), work.floor()
    reference, slow_rounds = work.resolver(), warm + max(3, rounds // 5)
    phases = work.resolver(pool=3)
    instrumented = build.load("cpu", "HISPARSE_PHASES")
    times: dict[str, list[float]] = {"resolve": [], "replay": [], "floor": [], "reference": []}
    spent: dict[str, list[float]] = {name: [] for name in PHASES}
    for step in range(rounds + warm):
        done = {"resolve": timed(resolve, step), "floor": timed(floor, step), "replay": timed(replay, step)}
        if with_reference and step < slow_rounds:
            with hk.use_backend("reference"):
                done["reference"] = timed(reference, step)
        before = [instrumented.phase_seconds(p) for p in range(len(PHASES))]
        with hk.use_backend("auto", module=instrumented):
            phases(step)
        if step >= warm:
            for name, seconds in done.items():
                times[name].append(seconds)
            for p, name in enumerate(PHASES):
                spent[name].append(instrumented.phase_seconds(p) - before[p])
    row: dict[str, Any] = asdict(s) | {"cache_slots": s.num_slots, "device": "cpu", "unit": "us"}
    row |= {name: 1e6 * statistics.median(of) if of else None for name, of in (times | spent).items()}
    row["over_floor"] = _median_ratio(times["resolve"], times["floor"])
    row["reference_over_ours"] = _median_ratio(times["reference"], times["resolve"]) if with_reference else None
    return row


def timed(run: Callable[[int], object], step: int) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    run(step)
    return time.perf_counter() - begin


def _median_ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=False))


COLUMNS = ("sweep", "model", "top_k", "ratio", "batch", "misses", "record", "threads")
MEASURES = ("resolve", *PHASES, "replay", "floor", "reference", "over_floor", "reference_over_ours")


def print_table(rows: list[dict[str, Any]], measures: tuple[str, ...] = MEASURES) -> None:
    """One line a row; times in microseconds."""
    print("  ".join(f"{c:>9}" for c in (*COLUMNS, *measures)))
    for row in rows:
        cells = [f"{row[c]:9.3g}" if isinstance(row[c], float) else f"{row[c]!s:>9.13}" for c in COLUMNS]
        cells += [f"{row[m]:>9.1f}" if row.get(m) is not None else f"{'-':>9}" for m in measures]
        print("  ".join(cells), flush=True)


def targets(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers that have targets: 10x the reference, 2x the floor, a second core that helps at batch 1."""
    usual = next(r for r in rows if r["sweep"] == "usual")
    by_threads = {r["threads"]: r["resolve"] for r in rows if r["sweep"] == "threads"}
    return {
        "reference_over_ours": usual["reference_over_ours"],
        "over_floor": usual["over_floor"],
        "second_core_speedup": by_threads[1] / by_threads[2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="only what has a target")
    parser.add_argument("--no-reference", action="store_true", help="leave out the torch reference, the slow part")
    args = parser.parse_args()
    if hk.backend() == "reference":
        raise SystemExit("nothing is compiled here, so there is nothing to compare")
    rows = [measure(s, args.rounds, not args.no_reference) for s in settings(args.quick)]
    print_table(rows)
    machine = {"cpu": _cpu_name(), "torch": torch.__version__, "rounds": args.rounds}
    print(json.dumps({"bench": "hisparse_kernels", "machine": machine, "targets": targets(rows), "rows": rows}))


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
