"""Would offload help, with which B, at which concurrency? From a simulated platform, in a few seconds:

python -m harness.plan model=glm52 platform=h200x8 input_len=131072 output_len=4096 slo.ttft_s=30 slo.tpot_ms=50

--sweep B or --sweep concurrency writes a figure of that sweep. Any other KEY=VALUE is an override of experiment=plan
(engine.memory_fraction=0.9, platform.costs.link_rate.value=...).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.config import load_cells
from harness.overrides import choices
from harness.schema import Config, OffloadSystem
from harness.simulation import advice
from harness.simulation.advice import Outcome
from harness.simulation.misses import miss_table
from harness.simulation.work import work_of
from harness.units import show_bytes
from harness.validate import ConfigError

SLOTS = (1.0, 1.5, 2.0, 3.0, 4.0)  # B in multiples of k
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288)
WINS = 1.02  # times full KV's best throughput
_SHORT = {"input_len": "workload.input_len", "output_len": "workload.output_len"}


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line: overrides of the experiment, and the limits (None: any)."""

    overrides: list[str]
    ttft_s: float | None = None
    tpot_s: float | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 where the plan cannot be made, with one line that says why."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--sweep", choices=["B", "concurrency"], help="draw throughput and TPOT over this")
    parser.add_argument("--out", type=Path, default=Path("plan.png"), help="where to (default: %(default)s)")
    options = parser.parse_args(argv)
    try:
        asked = read(options.overrides)
        full, offload = cells(asked)
        report(full, offload, asked, Console(width=100, highlight=False))
        if options.sweep:
            from harness.plan_figure import draw

            draw(full, offload, options.sweep, options.out, [round(r * offload.top_k) for r in SLOTS])
            print(f"figure: {options.out}")
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def read(overrides: Sequence[str]) -> Asked:
    """Raises ConfigError for a limit that is no number, or not above 0."""
    limits: dict[str, float | None] = {"slo.ttft_s": None, "slo.tpot_ms": None}
    rest = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key not in limits:
            rest.append(f"{_SHORT.get(key, key)}={value}" if "=" in text else text)
            continue
        try:
            limits[key] = float(value)
        except ValueError as error:
            raise ConfigError(f"{key}={value} must be a number") from error
        if not float(value) > 0:
            raise ConfigError(f"{key}={value} must be above 0")
    tpot = limits["slo.tpot_ms"]
    return Asked(rest, limits["slo.ttft_s"], None if tpot is None else tpot / 1e3)


def cells(asked: Asked) -> tuple[Config, Config]:
    """Full KV, and HiSparse with exact prefetch where the model shares selections. Raises ConfigError."""
    if any(text.startswith(("offload=", "offload.", "load.")) for text in asked.overrides):
        raise ConfigError("the planner chooses offload, B and concurrency itself: leave out offload and load keys")
    base = ["experiment=plan", *asked.overrides]
    full = load_cells([*base, "offload=full_kv"])
    (offload,) = load_cells([*base, "offload=hisparse_prefetch"])
    if len(full) != 1:
        raise ConfigError("the planner takes one value a key")
    work = work_of(offload)
    if work.anchors == work.layers:
        (offload,) = load_cells([*base, "offload=hisparse_sync"])
    return full[0], offload


def report(full: Config, offload: Config, asked: Asked, say: Console) -> None:
    """Print the plan."""
    k, work = offload.top_k, offload.workload
    engine = f"{offload.engine.data_parallel} ranks on {offload.platform.name}, simulated"
    say.print(f"{offload.model.name}, {work.input_len:,} tokens in, {work.output_len:,} out, k={k:,}; {engine}")
    runs = {slots: advice.outcomes(advice.with_slots(offload, slots)) for slots in _slots(offload)}
    every = [run for found in runs.values() for run in found]
    chosen = advice.best(every, asked.ttft_s, asked.tpot_s)
    missed = None if chosen else "no B and concurrency meets the limits; below is the best without them"
    chosen = chosen or advice.best(every, None, None)
    base = advice.outcomes(full)
    say.print(_bytes_table(full, chosen.config if chosen else offload))
    if chosen is None:
        say.print("HiSparse cannot hold even one such request: choose a shorter input, or a platform with more memory")
        return
    if missed:
        quickest = min(run.ttft_s for run in every), min(run.tpot_s for run in every)
        say.print(f"{missed} (least TTFT {quickest[0]:.1f} s, least TPOT {quickest[1] * 1e3:.1f} ms)", style="bold")
    baseline = advice.best(base, asked.ttft_s, asked.tpot_s) or advice.best(base, None, None)
    say.print(_outcome_table(chosen, baseline))
    _host(chosen, say)
    _same_concurrency(full, chosen, say)
    _crossover(full, chosen.config, say)
    _sensitivity(chosen, say)
    _trust(chosen, say)
    _verify(chosen, asked, say)


def _slots(config: Config) -> list[int]:
    length = config.workload.input_len + config.workload.output_len
    slots = [round(ratio * config.top_k) for ratio in SLOTS]
    return [b for b in slots if b < length] or slots[:1]


def _bytes_table(full: Config, offload: Config) -> Table:
    table = Table(box=SIMPLE_HEAD, title="One request", title_justify="left")
    for heading in ("", "records", "indexer keys", "metadata", "on the device", "in the host pool", "fit at once"):
        table.add_column(heading, justify="left" if not heading else "right")
    for words, config in (("full KV", full), (f"HiSparse, B={offload.offload.cache_slots:,}", offload)):
        need = advice.bytes_of_request(config)
        parts = (need.records, need.selection_state, need.metadata, need.device, need.host)
        table.add_row(words, *(show_bytes(part) for part in parts), f"{advice.fits(config):,}")
    return table


def _outcome_table(chosen: Outcome, baseline: Outcome | None) -> Table:
    table = Table(box=SIMPLE_HEAD, title="Best concurrency", title_justify="left")
    for heading in ("", "C", "tok/s", "TTFT s", "TPOT ms", "running"):
        table.add_column(heading, justify="left" if not heading else "right")
    for words, run in (("full KV", baseline), (f"HiSparse, B={chosen.config.offload.cache_slots:,}", chosen)):
        if run is None:
            table.add_row(words, "–", "holds none", "", "", "")
            continue
        numbers = (f"{run.throughput:,.0f}", f"{run.ttft_s:.1f}", f"{run.tpot_s * 1e3:.1f}", f"{run.running:,}")
        table.add_row(words, f"{run.concurrency:,}", *numbers)
    return table


def _host(chosen: Outcome, say: Console) -> None:
    ranks, need = chosen.config.engine.data_parallel or 1, advice.bytes_of_request(chosen.config).host
    ratio, count = advice.host_ratio(chosen.config)
    say.print(
        f"host memory: {show_bytes(need * chosen.running)} for the {chosen.running:,} that run, "
        f"{show_bytes(int(chosen.config.engine.host_kv_budget) * ranks)} at most; SGLang's host_to_device_ratio: "
        f"{ratio:g} (lets in {count:,} once prompts are staged layer by layer)"
    )


def _same_concurrency(full: Config, chosen: Outcome, say: Console) -> None:
    """Throughput against full KV's at the same concurrency, up to twice what full KV holds: below it, HiSparse pays
    for its misses and gains nothing."""
    holds, ratios = advice.fits(full), []
    if not holds:
        say.print("full KV cannot hold even one such request")
        return
    concurrency = min(full.engine.data_parallel or 1, holds)
    while concurrency <= min(2 * holds, max(chosen.running, holds)):
        rates = [advice.outcome(config, concurrency).throughput for config in (full, chosen.config)]
        ratios.append((concurrency, rates[1] / rates[0]))
        concurrency *= 2
    shown = ", ".join(f"{ratio:.2f}x at {c}" for c, ratio in ratios)
    first = next((c for c, ratio in ratios if ratio > WINS), None)
    verdict = f"wins from {first} on" if first else "does not win while full KV can hold the load"
    say.print(f"at the same concurrency HiSparse {verdict}: {shown} (full KV holds {holds})")


def _crossover(full: Config, offload: Config, say: Console) -> None:
    """From which context on HiSparse's best beats full KV's, at this B, each at all that fits."""
    longest = full.model.max_positions - full.workload.output_len
    wins, loses = [], []
    for length in [
        c for c in CONTEXTS if c <= longest and c + full.workload.output_len > (offload.offload.cache_slots or 0)
    ]:
        rates = []
        for config in (full, offload):
            changed = advice.with_input(config, length)
            most = advice.fits(changed)
            rates.append(advice.outcome(changed, most).throughput if most else 0.0)
        if rates[1] > WINS * rates[0]:
            wins.append(
                f"{length // 1024}K ({'full KV holds none' if not rates[0] else f'{rates[1] / rates[0]:.2f}x'})"
            )
        elif rates[0]:
            loses.append(f"{length // 1024}K ({rates[1] / rates[0]:.2f}x)")
    say.print(f"each at all that fits, HiSparse wins at {', '.join(wins) or 'no context'}")
    say.print(f"  and does not at {', '.join(loses) or 'none'}")


def _sensitivity(chosen: Outcome, say: Console) -> None:
    table = Table(
        box=SIMPLE_HEAD, title="If the platform were otherwise (same B and concurrency)", title_justify="left"
    )
    table.add_column("")
    table.add_column("throughput", justify="right")
    table.add_column("TPOT", justify="right")
    for words, rate, tpot in advice.sensitivities(chosen):
        table.add_row(words, f"{rate - 1:+.1%}", f"{tpot - 1:+.1%}")
    say.print(table)


def _trust(chosen: Outcome, say: Console) -> None:
    """Where the numbers come from."""
    costs, config = chosen.config.platform.costs, chosen.config
    for key in (f.name for f in fields(costs)):
        scalar = getattr(costs, key)
        if scalar.value is not None:
            say.print(f"{key} {scalar.value:.3g}: {scalar.source}", style="dim")
    records = (config.workload.input_len + config.workload.output_len) / (config.model.record_tokens or 1)
    if not miss_table().covers(config.top_k, config.offload.cache_slots or 0, records):
        say.print("miss rates beyond what was replayed: they are taken as at the largest context or B", style="bold")


def _verify(chosen: Outcome, asked: Asked, say: Console) -> None:
    config, real = chosen.config, "sglang" in choices("engine")
    line = ["python -m harness experiment=plan", *asked.overrides]
    line += [f"offload={OffloadSystem.full_kv.value},{config.offload.system.value}"]
    line += [f"offload.cache_slots={config.offload.cache_slots}", f"load.concurrencies=[{chosen.concurrency}]"]
    line += ["engine=sglang"] if real else []
    where = "on the cluster" if real else "simulated here (this checkout has no engine=sglang to verify it with)"
    say.print(f"to run it {where}:")
    say.print("  " + " ".join(line), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
