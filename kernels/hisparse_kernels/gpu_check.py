"""All checks that need a GPU, in one run under 6 minutes: python -m hisparse_kernels.gpu_check [--out FILE]

Builds the CUDA kernels, runs the conformance suite on the GPU, captures resolve and replay in a CUDA graph and compares
its replays with eager runs, and measures. Writes one JSON file and prints it as the last line; exits 1 if a check
failed. Needs a checkout (the suite is in tests/), PyTorch with CUDA, and nvcc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hisparse_kernels as hk
from hisparse_kernels import bench, bench_cuda, build

CHECKOUT = Path(__file__).parents[2]
SUITE_SECONDS, BENCH_SECONDS = 150, 90


def check_build() -> dict[str, Any]:
    """The CUDA module compiles and loads."""
    build.load("cuda")
    properties = torch.cuda.get_device_properties(0)
    capability = f"{properties.major}.{properties.minor}"
    return {"ok": True, "gpu": properties.name, "capability": capability, "torch": torch.__version__}


def check_suite() -> dict[str, Any]:
    """The conformance suite's GPU part."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/kernels"]
    paths = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "kernels"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    try:
        done = subprocess.run(
            command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=SUITE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else (late.stdout or "")
        return {"ok": False, "tail": output[-2000:], "reason": f"longer than {SUITE_SECONDS} s"}
    return {"ok": done.returncode == 0, "tail": (done.stdout + done.stderr)[-2000:]}


def check_graph() -> dict[str, Any]:
    """Resolve of an anchor and replay into a shared layer, captured once, equal eager runs at every step."""
    setting = bench.Setting("graph", batch=4, context=16384)
    steps = 8
    work = bench.Workload(setting, steps, "cuda")
    captured, eager = _layers(work), _layers(work)
    selection, out = work.selections[0].clone(), hk.plan_buffer(setting.batch, setting.top_k, "cuda")

    def step(layers: dict[str, Tensor], chosen: Tensor, into: tuple[Tensor, hk.Plan]) -> tuple[Tensor, hk.Plan]:
        state = layers["positions"], layers["order"]
        batch, pools = (work.rows, work.seq_lens), (work.table, bench.PAGE)
        slots, plan = hk.resolve(
            chosen, *batch, *state, layers["anchor"], work.hosts[0], *pools, checked=False, out=into
        )
        hk.replay(plan, layers["shared"], work.hosts[1], *pools)
        return slots, plan

    scratch = _layers(work)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # once before capture, as graphs ask for
        step(scratch, selection, out)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(captured, selection, out)
    for i in range(steps):
        selection.copy_(work.selections[i])
        graph.replay()
        own = hk.plan_buffer(setting.batch, setting.top_k, "cuda")
        slots, plan = step(eager, work.selections[i], own)
        torch.cuda.synchronize()
        total = int(plan.per_row.sum())
        same = torch.equal(out[0], slots) and torch.equal(out[1].per_row, plan.per_row)
        same &= all(torch.equal(a[:total], b[:total]) for a, b in zip(out[1][:3], plan[:3], strict=True))
        different = [name for name in captured if not torch.equal(captured[name], eager[name])]
        if not same or different:
            return {"ok": False, "step": i, "different": different or ["slots or plan"]}
        if total != setting.batch * setting.num_misses:
            return {"ok": False, "step": i, "misses": total, "reason": "not the misses that were asked for"}
    return {"ok": True, "steps": steps, "batch": setting.batch}


def _layers(work: bench.Workload) -> dict[str, Tensor]:
    return {
        "positions": work.positions.clone().cuda(),
        "order": work.order.clone().cuda(),
        "anchor": torch.zeros_like(work.cache),
        "shared": torch.zeros_like(work.cache),
    }


def measure() -> dict[str, Any]:
    """Medians in microseconds of resolve, its match alone, and its copies alone, by CUDA events."""
    rows, begun = [], time.perf_counter()
    settings = [s for s in bench.settings(quick=False) if s.sweep not in ("usual", "threads")]
    for setting in settings:
        if time.perf_counter() - begun > BENCH_SECONDS:
            break
        rows.append(bench_cuda.measure(setting, steps=20))
        torch.cuda.empty_cache()
    bench.print_table(rows, ("resolve", "match", "replay", "dma", "over_dma"))
    return {"ok": True, "rows": rows, "left_out": len(settings) - len(rows)}


Checks = dict[str, Callable[[], dict[str, Any]]]
KERNELS: Checks = {"build": check_build, "graph": check_graph, "suite": check_suite, "bench": measure}


def main(title: str = "hisparse_kernels.gpu", checks: Checks = KERNELS, about: str | None = __doc__) -> int:
    """Run checks, each of which returns what it found with `ok`, and write one file. The exit status."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "gpu_check.json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: gpu-check needs an NVIDIA GPU and PyTorch with CUDA")
        return 2
    begun = time.perf_counter()
    found: dict[str, Any] = {"check": title}
    for name, check in checks.items():
        started = time.perf_counter()
        try:
            found[name] = check()
        except Exception:  # a check that breaks must not keep the others from reporting
            found[name] = {"ok": False, "error": traceback.format_exc()[-2000:]}
        found[name]["seconds"] = round(time.perf_counter() - started, 1)
        print(f"{name}: {'ok' if found[name]['ok'] else 'FAILED'} in {found[name]['seconds']} s", flush=True)
    found["ok"] = all(found[name]["ok"] for name in checks)
    found["seconds"] = round(time.perf_counter() - begun, 1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
