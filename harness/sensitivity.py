"""What published rows of the simulated figures hang on: python -m harness.sensitivity [fig1 fig4 fig5 fig8]

Each point behind a row is simulated with room for one request of a rank less, as it is, and one more, and with N = C,
2C and 4C requests. The papers state neither; where a column differs much from `as is`, the row says little about the
rest of the model. Peaks are taken at the concurrency that is best as it is. The command writes nothing; a sweep
`keep`s the same for its report, and takes from its own rows what they have as it is.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console

from analysis import beside_papers, comparison
from analysis.tables import Fitted
from harness import store
from harness.config import load_cells
from harness.identity import cell_id
from harness.loadgen.samples import observe
from harness.records import Status
from harness.schema import Config, EngineKind
from harness.simulation.advice import fits
from harness.simulation.load import closed_loop
from harness.simulation.pools import capacity
from harness.validate import ConfigError

FIGURES = ("fig1", "fig4", "fig5", "fig8")


@dataclass(frozen=True, slots=True)
class Variant:
    """One column: requests a rank holds beyond what it holds, and N / C."""

    words: str
    more: int = 0
    rounds: int = 1


_COLUMNS = ["output_throughput", "mean_ttft_ms", "mean_tpot_ms", "status", "num_requests", "concurrency", "model"]
_COLUMNS += ["platform", "offload", "input_len", "decode_only_throughput", "peak_running"]
AS_IS = Variant("as is")
_ROOM = (Variant("n-1", more=-1), AS_IS, Variant("n+1", more=1))
VARIANTS = (*_ROOM, Variant("N=2C", rounds=2), Variant("N=4C", rounds=4))


def with_room(config: Config, more: int) -> Config | None:
    """The cell with budgets such that every rank holds `more` whole requests of the workload more; None where none
    does."""
    work, ranks = config.workload, config.engine.data_parallel or 1
    wanted = capacity(config, work.input_len, work.output_len) // ranks + more
    if not more:
        return config
    low, high = 0.0, 4.0  # times the budgets
    for _ in range(40):
        middle = (low + high) / 2
        if fits(_scaled(config, middle)) // ranks < wanted:
            low = middle
        else:
            high = middle
    found = _scaled(config, high)
    return found if wanted > 0 and fits(found) // ranks == wanted else None


def _scaled(config: Config, factor: float) -> Config:
    changed = copy.deepcopy(config)
    changed.engine.device_kv_budget = int(int(config.engine.device_kv_budget) * factor)
    changed.engine.host_kv_budget = int(int(config.engine.host_kv_budget) * factor)
    return changed


def rows_of(cells: Sequence[Config], variant: Variant, only: dict[int, set[int]] | None = None) -> pd.DataFrame:
    """Rows as `store.read_rows` gives them, of the columns that `comparison` reads; `cell`: index into `cells`.

    only: cell -> concurrencies to run; all without it.
    """
    found = []
    for index, cell in enumerate(cells):
        wanted = set(cell.load.concurrencies) if only is None else only.get(index, set())
        found += [{**row, "cell": index} for row in _rows(cell, variant, sorted(wanted))]
    return pd.DataFrame(found, columns=[*_COLUMNS, "cell"])


def _rows(cell: Config, variant: Variant, concurrencies: Sequence[int]) -> Iterator[dict[str, object]]:
    changed = with_room(cell, variant.more) if fits(cell) else None
    if changed is None:
        return
    for concurrency in concurrencies:
        point = closed_loop(changed, concurrency, concurrency * variant.rounds)
        stats, seen = point.stats, observe(point.requests)
        ends = max(request.end_s or 0.0 for request in point.requests)
        yield {
            "output_throughput": sum(request.output_tokens or 0 for request in point.requests) / ends,
            "mean_ttft_ms": 1e3 * float(seen.ttft.values_s.mean()),
            "mean_tpot_ms": 1e3 * float(seen.tpot.values_s.mean()),
            "status": Status.OK.value,
            "num_requests": concurrency * variant.rounds,
            "concurrency": concurrency,
            "model": cell.model.name,
            "platform": cell.platform.name,
            "offload": cell.offload.system.value,
            "input_len": cell.workload.input_len,
            "decode_only_throughput": _rate(stats.decode_tokens, stats.decode_seconds),
            "peak_running": stats.peak_running,
        }


def _wanted(rows: pd.DataFrame) -> dict[int, set[int]]:
    """Of each cell: the concurrencies at which its model has published values, and its best."""
    published = comparison.standing()
    published = published[published["concurrency"].str.isdigit()]
    wanted = {}
    for index, mine in rows.groupby("cell"):
        models = {name for name, ours in comparison.MODELS.items() if ours == mine["model"].iloc[0]}
        at = {int(c) for c in published[published["model"].isin(models)]["concurrency"]}
        best = max(mine.to_dict("records"), key=lambda row: float(row["output_throughput"]))["concurrency"]
        wanted[int(str(index))] = (at & set(mine["concurrency"])) | {int(best)}
    return wanted


def _rate(tokens: float | None, seconds: float | None) -> float | None:
    return tokens / seconds if tokens and seconds else None


def sensitivity(
    cells: Sequence[Config], variants: Sequence[Variant] = VARIANTS, as_is: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Published rows that these cells cover: `comparison.standing`'s columns, and one of errors for each variant.

    as_is: what `rows_of` gives for AS_IS, where that is known already.
    """
    table = comparison.standing()
    as_is = rows_of(cells, AS_IS) if as_is is None else as_is
    if as_is.empty:
        return table[:0]
    only = _wanted(as_is)
    for variant in variants:
        rows = as_is if variant == AS_IS else rows_of(cells, variant, only)
        table[variant.words] = comparison.compare(rows)["error"]
    return table[table[[variant.words for variant in variants]].notna().any(axis=1)]


def keep(cells: Sequence[Config], folder: Path) -> None:
    """Write what the published rows of an experiment's simulated cells hang on into its folder, for the report; nothing
    where they cover none."""
    models, platforms = set(comparison.MODELS.values()), set(comparison.PLATFORMS.values())
    mine = [
        cell
        for cell in cells
        if cell.engine.kind is EngineKind.simulated and cell.model.name in models and cell.platform.name in platforms
    ]
    table = sensitivity(mine, as_is=_swept(mine, folder)) if mine else pd.DataFrame()
    if len(table):
        table.to_csv(folder / beside_papers.FILE, index=False)


def _swept(cells: Sequence[Config], folder: Path) -> pd.DataFrame | None:
    """What the sweep has just simulated, as `rows_of` gives it; None where a point is not there, or not with N = C."""
    rows = store.read_rows(folder)
    rows = rows[(rows["num_requests"] == rows["concurrency"]) & (rows["repeat"] == 0)]
    ids = {cell_id(cell): index for index, cell in enumerate(cells)}
    rows = rows[rows["cell_id"].isin(ids)]
    if len(rows) < sum(len(set(cell.load.concurrencies)) for cell in cells):
        return None
    rows = rows[rows["status"] == Status.OK.value]  # what does not fit has a row that says so
    return rows.assign(cell=rows["cell_id"].map(ids))[[*_COLUMNS, "cell"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for an unknown figure."""
    parser = argparse.ArgumentParser(prog="python -m harness.sensitivity", description=__doc__.splitlines()[0])
    parser.add_argument("figures", nargs="*", default=list(FIGURES), help="experiments with published rows")
    options = parser.parse_args(arguments)
    try:
        table = sensitivity([cell for figure in options.figures for cell in load_cells([f"experiment={figure}"])])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console()
    console.print(Fitted(beside_papers.hangs_on(table)))
    console.print(beside_papers.EXPLAINED, style="dim")
    return 0


if __name__ == "__main__":
    sys.exit(main())
