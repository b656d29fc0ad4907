"""Run an experiment: python -m harness experiment=NAME [KEY=VALUE ...]

experiment=quickstart                     run it; what is on disk already is not run again
experiment=quickstart dry_run=true        print cells, points and bytes, start nothing
experiment=quickstart offload=full_kv     replace a grid axis; key=a,b sweeps any key
tracker=none  cluster.address=auto  retry_failed=true  name=my_run  results_dir=DIR
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console

from harness.config import GROUPS, choices, load_cells
from harness.display import SweepDisplay, plan_table, plan_totals
from harness.experiment import Cell, experiment_dir, plan
from harness.fetch import FetchError, fetch, is_fetched
from harness.records import ResultRow, Status
from harness.schema import to_yaml
from harness.validate import ConfigError
from harness.weights import fetch_name, weights_folder


def main(argv: list[str] | None = None) -> int:
    """0: every point is on disk; 1: some failed; 2: nothing was started; 130: interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m harness",
        description=__doc__,
        epilog="groups:\n" + "\n".join(f"  {g:<11} {' '.join(choices(g))}" for g in GROUPS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides; experiment= is required")
    parser.add_argument("--config-dir", type=Path, help="a folder of your own groups, searched beside conf/")
    parser.add_argument("--cfg", action="store_true", help="print the config of every cell and stop")
    args = parser.parse_args(argv)
    console = Console(soft_wrap=False)
    try:
        configs = load_cells(args.overrides, _existing(args.config_dir))
        if args.cfg:
            print("---\n".join(to_yaml(config) for config in configs), end="")
            return 0
        cells = plan(configs)
        console.print(plan_table(cells))
        console.print(plan_totals(cells), highlight=False)
        if configs[0].dry_run:
            return 0
        _bring_weights(cells, console)
    except (ConfigError, FetchError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return _run(cells, console)


def _existing(folder: Path | None) -> Path | None:
    if folder and not folder.is_dir():
        raise ConfigError(f"--config-dir {folder}: no such folder")
    return folder.resolve() if folder else None


def _bring_weights(cells: list[Cell], console: Console) -> None:
    """Fetch what this project can fetch; refuse what is not there, before anything starts."""
    for spec in {cell.config.model.weights for cell in cells if cell.points}:
        name = fetch_name(spec)
        if name and not is_fetched(name):
            fetch(name, say=lambda text: console.print(text, highlight=False))
        weights_folder(spec)


def _run(cells: list[Cell], console: Console) -> int:
    from analysis.draw import draw
    from harness.sweep import Busy, ClusterError, results_lock

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folder = experiment_dir(cells[0].config)
    rows: list[ResultRow] = []
    try:
        with results_lock(folder):
            pending = sum(len(cell.points) for cell in cells)
            if pending:
                rows = _sweep(cells, console)
            else:
                console.print(f"everything is done: {sum(len(c.done) for c in cells)} points in {folder}")
            drawn = draw(folder)
    except (Busy, ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\ninterrupted; finished points are in {folder}, the same command goes on", file=sys.stderr)
        return 130
    console.print(drawn.summary)
    console.print(f"report: {drawn.report}", highlight=False, soft_wrap=True)
    bad = sum(row.status in (Status.FAILED, Status.INVALID) for row in rows)
    if bad:
        print(f"{bad} points failed or are invalid; see the table", file=sys.stderr)
    return 1 if bad else 0


def _sweep(cells: list[Cell], console: Console) -> list[ResultRow]:
    from analysis.draw import draw
    from harness.store import read_rows
    from harness.sweep import Sweep
    from harness.tracking import make_tracker

    config = cells[0].config
    with SweepDisplay(console, cells) as display:
        tracker = make_tracker(
            config.tracker, experiment=config.name, results_dir=Path(config.results_dir), say=display.say
        )
        try:
            rows = Sweep(cells, tracker, display).run()
            drawn = draw(experiment_dir(config))
            pngs = [path for path in drawn.figures if path.suffix == ".png"]
            table = read_rows(experiment_dir(config)).to_dict("records")
            tracker.log_figures(pngs, [{str(k): v for k, v in row.items()} for row in table])
        finally:
            tracker.close()
    return rows


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
