"""All checks that need a GPU, in one run under 6 minutes: python -m harness.engine.gpu_check [--out FILE]

Those of the kernels (`hisparse_kernels.gpu_check`), then the engine's: full KV, HiSparse and HiSparse with prefetch
give the same logits, bit by bit, eagerly and in CUDA graphs, and leave whole KV behind; steps are timed with the host
pool in pinned memory. Writes one JSON file and prints it as the last line; exits 1 if a check failed, 2 without a GPU.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from hisparse_kernels import gpu_check as kernels_check
from torch import Tensor

from harness.config import load_cells
from harness.engine.decoder import GraphDecoder
from harness.engine.executor import Executor, Generation
from harness.engine.scheduler import Chunk, Plan
from harness.schema import Config

STEPS = 50
SYSTEMS = {  # what has to give the same bits
    "full_kv": ["offload=full_kv"],
    "hisparse_sync": ["offload=hisparse_sync"],
    "hisparse_prefetch": ["offload=hisparse_prefetch"],
    "speculative": ["offload=hisparse_prefetch", "offload.prefetch=speculative"],
    "fetch_all": ["offload=fetch_all"],
}
TIMED = ("full_kv", "hisparse_sync", "hisparse_prefetch", "no_io_oracle")
PROMPTS = (700, 333, 512)  # a batch of three is filled up to four
WARM = 10  # steps that are not timed: eager ones, and what a graph's capture takes
CUT = 300  # tokens of a prefill chunk
MODEL = [  # GLM's shape with shared selections, small, in the records' published width
    *("experiment=quickstart", "tracker=none", "load.concurrencies=[1]", "model=glm52_tiny", "platform=cuda"),
    *("model.dtype=bfloat16", "model.num_layers=8", "model.kv_lora_rank=512", "model.qk_rope_head_dim=64"),
    *("workload.input_len=8", "workload.output_len=8", "engine.device_kv_budget=2GiB", "engine.host_kv_budget=1GiB"),
]
SMALL = ["selector.top_k=64", "offload.cache_slots=96", "engine.context_len=1024", "model.max_positions=1024"]
LARGE = ["selector.top_k=512", "offload.cache_slots=1024", "engine.context_len=8192", "model.max_positions=8192"]


def check_same_bits() -> dict[str, Any]:
    """Logits of every system, eager and captured, against eager full KV, over prefill cut in chunks and 50 steps."""
    expected, found = None, dict[str, Any]()
    for captured in (False, True):
        for name, overrides in SYSTEMS.items():
            with engine(_cell([*SMALL, *overrides], graphs=captured)) as executor:
                logits = torch.stack([logits.cpu() for logits in _steps(executor, PROMPTS, STEPS)])
                problem = _problem(executor, captured)
                misses = executor.kv.counters.misses
            expected = logits if expected is None else expected
            if not torch.equal(logits, expected):
                step = int((logits != expected).flatten(1).any(1).nonzero()[0])
                problem = f"differs from eager full KV at step {step}"
            if name != "full_kv" and not misses:
                problem = problem or "nothing was fetched"
            case = f"{name}, {'captured' if captured else 'eager'}"
            found[case] = {"ok": problem is None, "problem": problem, "misses": misses}
    return {"ok": all(case["ok"] for case in found.values()), "steps": STEPS, "cases": found}


def check_host_waits() -> dict[str, Any]:
    """Eager steps with torch told to raise where the host would wait for the GPU."""
    with engine(_cell([*SMALL, *SYSTEMS["hisparse_prefetch"]], graphs=False)) as executor:
        steps = _steps(executor, PROMPTS, 4)
        for _ in range(2):
            next(steps)
        decoder = executor._decoder
        assert isinstance(decoder, GraphDecoder)
        run = decoder._run

        def strictly(size: Any) -> Tensor:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return run(size)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        decoder._run = strictly  # type: ignore[method-assign]
        for _ in steps:
            pass
    return {"ok": True}


def measure_steps() -> dict[str, Any]:
    """Milliseconds of a captured decode step, medians, by system and batch; every wait for records is in them."""
    rows = []
    for batch in (1, 8):
        for name in TIMED:
            overrides = [f"offload={name}", *(["offload.cache_slots=null"] if name == "full_kv" else [])]
            with engine(_cell([*LARGE, *overrides], graphs=True)) as executor:
                prompts = [4000 + 7 * i for i in range(batch)]  # one size of graph
                times = [time.perf_counter()]
                times += [time.perf_counter() for _ in _steps(executor, prompts, 40)]
                steps = [1e3 * (after - before) for before, after in itertools.pairwise(times[WARM:])]
                counters = executor.kv.counters
                row = {"system": name, "batch": batch, "step_ms": statistics.median(steps), "misses": counters.misses}
            rows.append(row)
            print(f"  {name:18} batch {batch}: {row['step_ms']:.3f} ms a step", flush=True)
    return {"ok": True, "rows": rows}


def _cell(overrides: list[str], *, graphs: bool) -> Config:
    (config,) = load_cells([*MODEL, *overrides, f"platform.cuda_graphs={str(graphs).lower()}"])
    return config


@contextmanager
def engine(config: Config) -> Iterator[Executor]:
    """An executor whose memory is given back."""
    executor = Executor(config, None)
    try:
        yield executor
    finally:
        del executor
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _steps(executor: Executor, prompts: tuple[int, ...] | list[int], steps: int) -> Iterator[Tensor]:
    """Prefill random prompts, then decode together; the logits of each step, valid until the next."""
    rng, ids = random.Random(0), tuple(range(len(prompts)))
    for i, length in enumerate(prompts):
        tokens = [rng.randrange(256) for _ in range(length)]
        executor.add(i, Generation(tokens=tokens, prompt_len=length, max_new_tokens=steps + 1))
        chunks = [(start, min(CUT, length - start)) for start in range(0, length, CUT)]
        for start, size in chunks:
            last = start + size == length
            executor.run(Plan((i,) if start == 0 else (), (Chunk(i, start, size, last),), ()))
    for _ in range(steps):
        executor.run(Plan((), (), ids))
        assert executor.last_logits is not None
        yield executor.last_logits
    with executor._on_stream(), torch.inference_mode():
        executor.kv.check_integrity()
    for i in ids:
        executor.remove(i)
    executor.kv.check_idle()


def _problem(executor: Executor, captured: bool) -> str | None:
    decoder = executor._decoder
    graphs = decoder.num_graphs if isinstance(decoder, GraphDecoder) else 0
    return None if (graphs > 0) == captured else f"{graphs} graphs were captured"


ENGINE: kernels_check.Checks = {"same_bits": check_same_bits, "host_waits": check_host_waits, "steps": measure_steps}


if __name__ == "__main__":
    sys.exit(kernels_check.main("gpu", kernels_check.KERNELS | ENGINE, __doc__))
