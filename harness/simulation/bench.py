"""How fast simulated requests are: the whole of figure 8, and a day of 12,000 requests that arrive by themselves.

python -m harness.simulation.bench [--trace mooncake.jsonl] [--vidur build/vidur/bin/python]      (make bench-sim)

The last line is JSON. `--trace` takes a Mooncake trace (timestamp in ms, input_length, output_length) and repeats it
until there are 12,000 requests; without it, lengths are drawn around that trace's means. Host: one core.

`--vidur` names an interpreter with that package and runs both simulators on a workload that both can express:
Llama-3-8B, dense attention, one H100, requests of 1,024 + 128 tokens at 8 a second. Both get step times from the same
data sheet; vidur walks from step to step through operations of a layer, ours jumps while batches stay as they are.
Their virtual times of the whole workload are printed too, and should be close.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.config import load_cells
from harness.schema import Config
from harness.simulation.load import closed_loop, simulate_point
from harness.simulation.pacing import GivenTimes
from harness.simulation.point import Asked, simulate
from harness.validate import ConfigError

DAY_REQUESTS = 12_000
DAY_S = 86_400.0
MEAN_INPUT, MEAN_OUTPUT = 15_325, 182  # of the Mooncake synthetic trace (FAST'25 release)


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 for a trace that cannot be read, with one line that says why."""
    parser = argparse.ArgumentParser(prog="python -m harness.simulation.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--vidur", type=Path, metavar="PYTHON", help="an interpreter that has vidur 0.0.26")
    options = parser.parse_args(argv)
    try:
        times, asked = read_trace(options.trace) if options.trace else drawn()
        cells = load_cells(["experiment=fig8"])
    except (ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sweep, sweep_requests = _sweep(cells)
    one_by_one = _timed(lambda: closed_loop(cells[1], 256, 256, mirror=False))
    day = _day(cells[2], times, asked)
    result = {
        "fig8_s": sweep,
        "fig8_requests_per_s": sweep_requests / sweep,
        "unmirrored_c256_s": one_by_one,
        "day_s": day,
        "day_requests": len(asked),
        "day_requests_per_s": len(asked) / day,
    }
    if options.vidur:
        result |= beside_vidur(options.vidur)
    for name, value in result.items():
        print(f"{name:<22} {value:,.3f}")
    print(json.dumps(result))
    return 0


DENSE = ["experiment=plan", "model=qwen3_0_6b", "selector=dense", "platform=h100x8", "offload=full_kv"]
DENSE += ["engine.admission=full_output"]  # memory is no question here
LLAMA3_8B = {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
LLAMA3_8B |= {"intermediate_size": 14336, "vocab_size": 128256}
SPEC = {"requests": 2000, "prompt": 1024, "output": 128, "rate": 8.0, "seed": 0}


def dense_cell() -> Config:
    """Llama-3-8B on one H100."""
    sizes = [f"model.{key}={value}" for key, value in LLAMA3_8B.items()]
    lengths = [f"workload.input_len={SPEC['prompt']}", f"workload.output_len={SPEC['output']}"]
    one = ["platform.num_devices=1", "engine.prefill_chunk_tokens=2048", "engine.max_running_requests=128"]
    return load_cells([*DENSE, *sizes, *lengths, *one, "model.tie_embeddings=false"])[0]


def beside_vidur(python: Path) -> dict[str, float]:
    """Requests per wall-clock second of both, and the virtual seconds each gives the whole workload.

    Raises subprocess.CalledProcessError where vidur fails.
    """
    config, rng = dense_cell(), random.Random(int(SPEC["seed"]))
    costs, at, times = config.platform.costs, 0.0, []
    for _ in range(int(SPEC["requests"])):
        times.append(at)
        at += rng.expovariate(SPEC["rate"])
    asked = [Asked(int(SPEC["prompt"]), int(SPEC["output"]))] * len(times)
    ends: list[float] = []
    ours = _timed(lambda: ends.extend(r.end_s or 0.0 for r in simulate(config, asked, GivenTimes(times)).requests))
    bandwidth = float(config.platform.memory_bandwidth or 0) * (costs.memory_efficiency.value or 1.0)
    sheet = {"flops": config.platform.flops, "bandwidth": bandwidth}
    fitted = {"attention": costs.attention_efficiency.value, "layer_ms": 1e3 * (costs.layer_s.value or 0.0)}
    fitted["prefill"] = costs.prefill_efficiency.value or 1.0
    script = Path(__file__).with_name("bench_vidur.py")
    spec = json.dumps({**SPEC, **sheet, **fitted})
    done = subprocess.run([str(python), str(script)], input=spec, capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    return {
        "dense_requests_per_s": len(times) / ours,
        "vidur_requests_per_s": len(times) / theirs["wall_s"],
        "times_vidur": theirs["wall_s"] / ours,
        "dense_virtual_s": max(ends),
        "vidur_virtual_s": theirs["virtual_s"],
    }


def drawn(count: int = DAY_REQUESTS) -> tuple[list[float], list[Asked]]:
    """Arrivals of a Poisson process over a day, and lengths from lognormal distributions; always the same."""
    rng = random.Random(0)
    times = sorted(rng.uniform(0, DAY_S) for _ in range(count))

    def length(mean: int, most: int) -> int:
        return min(most, max(1, round(rng.lognormvariate(0, 1) * mean / 1.65)))

    return times, [Asked(length(MEAN_INPUT, 30_000), length(MEAN_OUTPUT, 2_000)) for _ in range(count)]


def read_trace(path: Path, count: int = DAY_REQUESTS) -> tuple[list[float], list[Asked]]:
    """The trace, again and again one after the other. Raises ValueError naming the file and line."""
    found: list[tuple[float, Asked]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            lengths = Asked(int(entry["input_length"]), max(1, int(entry["output_length"])))
            found.append((float(entry["timestamp"]) / 1e3, lengths))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} line {number} is no request of a Mooncake trace: {error}") from error
    if not found:
        raise ValueError(f"{path} holds no request")
    span = max(at for at, _ in found) + 1.0
    several = [(at + span * n, lengths) for n in range(-(-count // len(found))) for at, lengths in found][:count]
    return [at for at, _ in several], [lengths for _, lengths in several]


def _sweep(cells: list[Config]) -> tuple[float, int]:
    points = [(cell, c) for cell in cells for c in cell.load.concurrencies]
    return _timed(lambda: [simulate_point(cell, c, c) for cell, c in points]), sum(c for _, c in points)


def _day(config: Config, times: list[float], asked: list[Asked]) -> float:
    longest = max(a.prompt_len + a.output_len for a in asked)
    config.engine.context_len = max(config.context_len, longest)
    config.engine.host_to_device_ratio = None  # requests of all lengths: each counts what it holds
    config.engine.staging = type(config.engine.staging).streamed
    return _timed(lambda: simulate(config, asked, GivenTimes(times)))


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
