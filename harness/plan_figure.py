"""The planner's figure: throughput and TPOT over B or over the concurrency."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.schema import Config
from harness.simulation import advice
from harness.simulation.advice import Outcome


def draw(full: Config, offload: Config, over: str, out: Path, slots: list[int]) -> None:
    """over: `B` (each at all that fits) or `concurrency` (HiSparse at its default B beside full KV)."""
    lines: dict[str, list[tuple[float, Outcome]]] = {}
    if over == "B":
        cells = [advice.with_slots(offload, b) for b in slots]
        runs = [(cell, advice.fits(cell)) for cell in cells]
        lines["HiSparse, all that fit"] = [
            (float(cell.offload.cache_slots or 0), advice.outcome(cell, most)) for cell, most in runs if most
        ]
    else:
        for words, config in (("full KV", full), (f"HiSparse, B={offload.offload.cache_slots:,}", offload)):
            lines[words] = [(float(run.concurrency), run) for run in advice.outcomes(config)]
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    throughput, tpot = figure.subplots(1, 2)
    for words, points in lines.items():
        at = [x for x, _ in points]
        throughput.plot(at, [run.throughput for _, run in points], marker="o", label=words)
        tpot.plot(at, [run.tpot_s * 1e3 for _, run in points], marker="o", label=words)
    marked = sorted({x for points in lines.values() for x, _ in points})
    for axes, words in ((throughput, "Output throughput (tokens/s)"), (tpot, "Mean TPOT (ms)")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(_apart(marked), labels=[f"{x:,.0f}" for x in _apart(marked)])
        axes.minorticks_off()
        axes.set_xlabel(over)
        axes.set_ylabel(words)
        axes.set_ylim(bottom=0)
    throughput.legend(frameon=False, fontsize="small")
    work = offload.workload
    figure.suptitle(
        f"Simulated: {offload.model.name} on {offload.platform.name}, {work.input_len:,} in, {work.output_len:,} out",
        fontsize="medium",
    )
    try:
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror}: choose a file to write") from error


def _apart(values: list[float]) -> list[float]:
    """Those of ascending values that leave room for the label of the one before on a logarithmic axis."""
    found: list[float] = []
    for value in values:
        if not found or value >= 1.3 * found[-1]:
            found.append(value)
    return found
