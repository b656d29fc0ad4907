"""Where a decode step's time goes, and what resolving slots costs: python -m harness.engine.bench

SmolLM2-135M (real weights: python -m harness.fetch smollm2_135m) with Quest. Two questions, one JSON line last:

1. The engine's own share of a decode step at batch 8: everything that is neither *model math* (embedding, norms,
   projections, rotary embedding, MLP, attention, the selector's state and scores, logits) nor *record copies* (waiting
   for records from the host pool). So planning, building index tensors, slot bookkeeping and matching, the new
   record's way into the cache, Python between the layers, sampling, accounting and delivery all count as overhead.
   Measured by clocks around the math in an engine that is otherwise as a server runs it; target: at most 15%.
2. The no-IO oracle's step over full KV's at batch 1 and 2: what resolve costs. Two engines take turns, four steps
   each; the ratio of their median steps in each round, and the median of the rounds with its standard error (from the
   quartiles: a shared machine's outliers are not the engine's); target: at most 1.03.

With `--clock cpu` the seconds are the computing thread's own CPU time: on a machine busy with other things wall time
counts those, too, and most where Python lets go of the core. (Waiting for records then costs nothing.)
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.config import load_cells
from harness.engine.engine import Engine, Event, Submission
from harness.weights import weights_folder

WARM_UP = 6  # decode steps
TURN = 4  # decode steps before the other engine's turn: short, so that a slow moment of the machine meets both
MATH = {  # by the objects that do it; what they call in turn is in their time
    "model": ("embed", "_project", "attend", "_finish_layer", "_logits"),
    "selector": ("append", "select"),
}
KV = ("begin_decode", "append", "resolve")  # overhead, shown apart; resolve without its waits


@dataclass
class Clocks:
    """Seconds spent inside watched calls, by name."""

    now: Callable[[], float]
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def watch(self, owner: Any, method: str, name: str) -> None:
        inner, seconds, now = getattr(owner, method), self.seconds, self.now

        def timed(*arguments: Any, **options: Any) -> Any:
            begin = now()
            try:
                return inner(*arguments, **options)
            finally:
                seconds[name] += now() - begin

        setattr(owner, method, timed)


class Bench:
    """An engine in its decode phase: `batch` requests, prompts computed, none of them near its end."""

    def __init__(self, system: str, batch: int, context: int, steps: int, now: Callable[[], float]):
        self._now = now
        (config,) = load_cells(
            [
                "experiment=smollm2_quest",
                f"offload={system}",
                "tracker=none",
                "load.concurrencies=[1]",
                f"workload.input_len={context}",
                f"workload.output_len={steps}",
                f"engine.context_len={context + steps}",
                "engine.device_kv_budget=2GiB",
                "engine.host_kv_budget=4GiB",
            ]
        )
        self.config = config
        self.engine = Engine(config, weights_folder(config.model.weights))
        self.tokens = 0
        rng = random.Random(0)
        for _ in range(batch):
            prompt = [rng.randrange(config.model.vocab_size) for _ in range(context)]
            self.engine.submit(Submission(prompt=prompt, max_new_tokens=steps, deliver=self._deliver, ignore_eos=True))
        while self.engine.stats().decode_steps == 0 or self.engine.num_waiting:
            self.step()
        self.steps_of(WARM_UP)

    def _deliver(self, events: list[Event]) -> None:
        self.tokens += len(events)

    def step(self) -> float:
        """Seconds of one engine step, from planning to delivery."""
        begin = self._now()
        assert self.engine.run_once(), "the requests have ended"
        assert self.engine.failure is None, self.engine.failure
        return self._now() - begin

    def steps_of(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]

    def watch(self) -> Clocks:
        clocks, executor = Clocks(self._now), self.engine._executor
        for method in MATH["model"]:
            if hasattr(executor.model, method):
                clocks.watch(executor.model, method, f"math {method.strip('_')}")
        for method in MATH["selector"]:
            clocks.watch(executor.selector, method, f"math {method} (selector)")
        for method in KV:
            clocks.watch(executor.kv, method, f"kv {method}")
        return clocks


def measure_overhead(
    system: str, batch: int, context: int, steps: int, repeats: int, now: Callable[[], float]
) -> dict[str, float]:
    """Milliseconds a step by phase, medians over the repeats, and `overhead_share`."""
    bench = Bench(system, batch, context, WARM_UP + steps * repeats + 4, now)
    clocks = bench.watch()
    rows: list[dict[str, float]] = []
    for _ in range(repeats):
        before, io = dict(clocks.seconds), bench.engine.stats().exposed_io_seconds or 0.0
        total = sum(bench.steps_of(steps))
        row = {name: now - before.get(name, 0.0) for name, now in clocks.seconds.items()}
        if now is time.perf_counter:  # waiting takes no CPU time
            row["copies"] = (bench.engine.stats().exposed_io_seconds or 0.0) - io
            row["kv resolve"] -= row["copies"]
        row.setdefault("copies", 0.0)
        computed = sum(seconds for name, seconds in row.items() if name.startswith("math"))
        row |= {"total": total, "math": computed, "overhead": total - computed - row["copies"]}
        rows.append({name: 1e3 * seconds / steps for name, seconds in row.items()})
        rows[-1]["overhead_share"] = row["overhead"] / total
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def measure_ratio(batch: int, context: int, rounds: int, now: Callable[[], float]) -> dict[str, float]:
    """The oracle's step over full KV's: the median over rounds of the ratio of medians, its error, both steps in ms."""
    total = WARM_UP + TURN * rounds + 4
    full, oracle = (Bench(system, batch, context, total, now) for system in ("full_kv", "no_io_oracle"))
    pairs = []
    for at in range(rounds):
        order = (full, oracle) if at % 2 else (oracle, full)
        times = {id(bench): statistics.median(bench.steps_of(TURN)) for bench in order}
        pairs.append((times[id(full)], times[id(oracle)]))
    ratios = [mine / base for base, mine in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "ratio": middle,
        "standard_error": 0.93 * (high - low) / math.sqrt(rounds),  # of a median: 1.253 sigma, and sigma is IQR / 1.349
        "full_kv_ms": 1e3 * statistics.median(base for base, _ in pairs),
        "no_io_oracle_ms": 1e3 * statistics.median(mine for _, mine in pairs),
    }


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def show(system: str, batch: int, phases: dict[str, float], say: Callable[[str], None] = print) -> None:
    say(f"\n{system}, batch {batch}: {phases['total']:.1f} ms a step")
    for name, value in sorted(phases.items()):
        if name.startswith(("math ", "kv ")):
            say(f"  {name:32}{value:9.2f} ms")
    for name in ("math", "copies", "overhead"):
        say(f"  {name:32}{phases[name]:9.2f} ms  {phases[name] / phases['total']:6.1%}")


def main(argv: list[str] | None = None) -> int:
    """The command line: measures, prints a table and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m harness.engine.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=1024, help="prompt tokens (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="of the overhead's steps (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="decode steps a block (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="blocks (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=60, help="turns of the oracle and full KV (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch's (default: %(default)s)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="(default: %(default)s)")
    options = parser.parse_args(argv)
    now = time.perf_counter if options.clock == "wall" else time.thread_time
    result: dict[str, Any] = {"bench": "engine", "model": "smollm2_135m", "selector": "quest"}
    result |= vars(options) | {"load_before": os.getloadavg()[0]}
    try:
        with torch_threads(options.threads):
            for system in ("full_kv", "hisparse_sync"):
                phases = measure_overhead(system, options.batch, options.context, options.steps, options.repeats, now)
                show(system, options.batch, phases)
                result[system] = {name: round(value, 4) for name, value in phases.items()}
            for batch in (1, 2):
                ratio = measure_ratio(batch, options.context, options.rounds, now)
                print(f"\nbatch {batch}: the oracle's step takes {ratio['ratio']:.3f} of full KV's", end=" ")
                print(f"(+- {ratio['standard_error']:.3f})")
                result[f"oracle_over_full_kv_{batch}"] = {name: round(value, 4) for name, value in ratio.items()}
    except ValueError as error:  # the weights are not there
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
