"""What the harness adds to a point: a sweep of 1,000 points against a server whose pace is known.

python -m harness.sweep_bench [--points 1000] [--tracker wandb] [--profile]      (make bench-harness)

The sweep is like any other: Ray, an actor for the instance, a load generator, warm-up, flush and counters around each
point, files on disk with fsync, W&B's offline files, at the end the table that analysis reads. Only the server is a
stub (`harness.loadgen.paced`, by engine=external), which answers at a fixed pace: what its requests take is
arithmetic, and the rest of a point's time is the harness's. Starting Ray and cells is told apart. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from analysis.frame import load
from harness.config import load_cells
from harness.display import SweepDisplay
from harness.experiment import Cell, Point, experiment_dir, plan
from harness.loadgen.paced.child import paced_server
from harness.records import ResultRow, Status
from harness.sweep import Sweep
from harness.tracking import make_tracker

FIRST_MS, STEP_MS = 5.0, 1.0
OUTPUT_LEN, WARMUP_LEN = 16, 8  # tokens; the second is `harness.loads.WARMUP_TOKENS`
CELLS, CONCURRENCIES = 4, 5
SERVICE_S = (2 * FIRST_MS + (OUTPUT_LEN + WARMUP_LEN - 2) * STEP_MS) / 1e3  # of the warm-up and the measured part


class _Ends(SweepDisplay):
    """A display that notes when each point ended."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        super().__init__(Console(quiet=True), cells)
        self.ends: list[tuple[str, float]] = []  # cell id, seconds

    def finished(self, cell: Cell, point: Point, row: ResultRow) -> None:
        super().finished(cell, point, row)
        self.ends.append((cell.cell_id, time.perf_counter()))


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 when a point failed."""
    parser = argparse.ArgumentParser(prog="python -m harness.sweep_bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=1000, help=f"a multiple of {CELLS * CONCURRENCIES}")
    parser.add_argument("--tracker", choices=["wandb", "none"], default="wandb", help="wandb: offline")
    parser.add_argument("--profile", action="store_true", help="print where the driver's time goes")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, paced_server("plain", FIRST_MS, STEP_MS) as url:
        cells = _cells(args.points, args.tracker, folder, url)
        begin = time.perf_counter()
        display = _sweep(cells, args.profile)
        total_s = time.perf_counter() - begin
        result, failures = _result(display, total_s, experiment_dir(cells[0].config))
        again = time.perf_counter()
        assert not any(cell.points for cell in plan([cell.config for cell in cells]))
        result["plan_again_s"] = time.perf_counter() - again
    for name, value in result.items():
        print(f"{name:<28} {value:,.3f}")
    for reason, count in failures.most_common(3):
        print(f"not ok: {count} times {reason}")
    print(json.dumps(result))
    return 1 if result["failed"] else 0


def _cells(points: int, tracker: str, folder: str, url: str) -> list[Cell]:
    repeats = points // (CELLS * CONCURRENCIES)
    return plan(
        load_cells(
            [
                *("experiment=quickstart", "engine=external", f"engine.url={url}", "model.name=paced"),
                *("offload=full_kv", f"workload.seed={','.join(map(str, range(CELLS)))}", f"results_dir={folder}"),
                f"load.concurrencies={list(range(1, CONCURRENCIES + 1))}".replace(" ", ""),
                *(f"load.repeats={repeats}", "load.warmup_requests=1"),
                *("workload.input_len=16", f"workload.output_len={OUTPUT_LEN}", "engine.context_len=1024"),
                *(f"tracker={tracker}", *(["tracker.mode=offline"] if tracker == "wandb" else [])),
            ]
        )
    )


def _sweep(cells: list[Cell], profile: bool) -> _Ends:
    config = cells[0].config
    profiler = cProfile.Profile() if profile else None
    display = _Ends(cells)
    with display:
        tracker = make_tracker(config.tracker, experiment=config.name, results_dir=Path(config.results_dir))
        try:
            with profiler or nullcontext():
                Sweep(cells, tracker, display).run()
        finally:
            tracker.close()
    if profiler:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(40)
    return display


def _result(display: _Ends, total_s: float, folder: Path) -> tuple[dict[str, float], Counter[str]]:
    """A point's time is from the end of the one before it in its cell: a cell's first is counted with its start."""
    took = [b - a for (one, a), (other, b) in pairwise(display.ends) if one == other]
    begin = time.perf_counter()
    rows = load(folder).rows
    read_s = time.perf_counter() - begin
    not_ok = rows[rows["status"] != Status.OK.value]
    count = len(rows)
    result = {
        "points": count,
        "ms_per_point": sum(took) / len(took) * 1e3,
        "stub_ms_per_point": SERVICE_S * 1e3,
        "added_ms_per_point": (sum(took) / len(took) - SERVICE_S) * 1e3,
        "added_ms_median": (sorted(took)[len(took) // 2] - SERVICE_S) * 1e3,
        "added_ms_with_starts": (total_s / count - SERVICE_S) * 1e3,
        "read_s": read_s,
        "failed": int((rows["status"] == Status.FAILED.value).sum()),
        "invalid": int((rows["status"] == Status.INVALID.value).sum()),
    }
    return result, Counter(not_ok["reason"])


if __name__ == "__main__":
    sys.exit(main())
