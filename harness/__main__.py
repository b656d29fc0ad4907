"""Run an experiment: python -m harness experiment=NAME [KEY=VALUE ...]

experiment=quickstart                     run it; what is on disk already is not run again
experiment=quickstart dry_run=true        print cells, points and bytes, start nothing
experiment=quickstart offload=full_kv     replace a grid axis; key=a,b sweeps any key
tracker=none  cluster.address=auto  cluster.budget_s=28800  retry_failed=true  name=my_run  results_dir=DIR
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # the imports take a second: Ctrl-C is as quiet there as later
    signal.signal(signal.SIGINT, lambda number, frame: sys.exit(130))

from rich.console import Console

from harness.config import load_cells
from harness.display import SweepDisplay
from harness.durable import StoreError, disk_trouble
from harness.experiment import RETRIED, Cell, experiment_dir, plan
from harness.fetch import FetchError, fetch, is_fetched
from harness.interrupts import deaf, interruptible, shielded
from harness.lock import Busy, Lock, results_lock
from harness.overrides import GROUPS, choices
from harness.plan_launch import launch_notes
from harness.plan_view import cell_labels, plan_table, plan_totals
from harness.schema import Config, TrackerKind, to_plain, to_yaml
from harness.store import clean_partial, read_rows, stored_status
from harness.tracking import Tracker, make_tracker, resolve_mode
from harness.units import counted
from harness.validate import ConfigError
from harness.weights import check_weights, fetch_name
from workloads import check_files

if TYPE_CHECKING:
    from analysis.draw import Drawn


def main(argv: list[str] | None = None) -> int:
    """0: every point is on disk, ok or infeasible; 1: some failed or are invalid, now or in an earlier run, or the disk
    is full; 2: nothing was started; 3: `cluster.budget_s` is used up and points are left; 130: interrupted."""
    args, kept = _arguments(argv), ["nothing was started"]
    try:
        with interruptible():
            return _main(args, kept)
    except KeyboardInterrupt:
        with deaf():  # to an impatient second one: it gets the same line
            print(f"\ninterrupted; {kept[-1]}", file=sys.stderr)
        return 130


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--config-dir", type=Path, help="a folder of your own groups, searched beside conf/")
    folder = own.parse_known_args(argv)[0].config_dir  # its choices belong in the help too
    parser = argparse.ArgumentParser(
        prog="python -m harness",
        description=__doc__,
        epilog="groups:\n" + "\n".join(f"  {g:<11} {' '.join(choices(g, folder))}" for g in GROUPS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[own],
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides; experiment= is required")
    parser.add_argument("--cfg", action="store_true", help="print the config of every cell and stop")
    return parser.parse_args(argv)


def _main(args: argparse.Namespace, kept: list[str]) -> int:
    """kept: what an interrupt is answered with; the last one counts."""
    console = Console(soft_wrap=False)
    try:
        configs = load_cells(args.overrides, _existing(args.config_dir))
        if args.cfg:
            print("---\n".join(to_yaml(config) for config in configs), end="")
            return 0
        _check_surroundings(configs)
        cells = plan(configs)
        console.print(plan_table(cells))
        console.print(plan_totals(cells), highlight=False)
        if configs[0].dry_run:
            for line in launch_notes(cells, cell_labels(cells)):
                console.print(line, soft_wrap=True, highlight=False, markup=False)
            return 0
        _bring_weights(cells, console)
    except (FetchError, ValueError) as error:
        return _refuse(error)
    return _run(cells, console, kept)


def _existing(folder: Path | None) -> Path | None:
    if folder and not folder.is_dir():
        raise ConfigError(f"--config-dir {folder}: no such folder")
    return folder.resolve() if folder else None


def _refuse(error: Exception) -> int:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


def _check_surroundings(configs: list[Config]) -> None:
    """Refuse weights and workload files that are nowhere and a tracker that cannot log; ValueError says what to do."""
    for workload in {repr(config.workload): config.workload for config in configs}.values():
        check_files(workload)
    for config in configs:
        name = fetch_name(config.model.weights)
        if name is None or is_fetched(name):  # which knows the name, or says which there are
            check_weights(config.model)
    if configs[0].tracker.kind is TrackerKind.wandb:
        resolve_mode(configs[0].tracker.mode)


def _bring_weights(cells: list[Cell], console: Console) -> None:
    """Fetch what this project can fetch."""
    for cell in cells:
        name = fetch_name(cell.config.model.weights)
        if name and cell.points:
            fetch(name, say=lambda text: console.print(text, highlight=False))  # at once where it is here
            check_weights(cell.config.model)


def _run(cells: list[Cell], console: Console, kept: list[str]) -> int:
    from harness.sweep import ClusterError

    folder = experiment_dir(cells[0].config)
    kept.append(f"finished points are in {folder}, the same command goes on")
    try:
        with results_lock(folder, cells[0].config.break_lock) as lock:
            clean_partial(folder)
            cells = plan([cell.config for cell in cells])  # another driver may have finished meanwhile
            return _run_locked(cells, folder, console, lock)
    except (Busy, ClusterError, ConfigError) as error:
        return _refuse(error)
    except StoreError as error:
        _refuse(error)
        return 1
    except Exception as error:
        trouble = disk_trouble(error)  # what draws, logs and compresses has errors of its own for a full disk
        if trouble is None:
            raise
        _refuse(StoreError(f"{trouble.filename or folder}: {trouble.strerror}; the points on disk are whole"))
        return 1


def _run_locked(cells: list[Cell], folder: Path, console: Console, lock: Lock) -> int:
    left, drawn = 0, None
    if any(cell.points for cell in cells):
        drawn, left = _sweep(cells, folder, console, lock)
    else:
        done = counted(sum(len(cell.done) for cell in cells), "point")
        console.print(f"everything is done: {done} in {folder}", highlight=False, soft_wrap=True)
        drawn = _draw_again(cells, folder)
    if drawn:
        console.print(drawn.summary)
        console.print(f"report: {drawn.report}", highlight=False, soft_wrap=True)
    bad = _not_usable(cells, folder)
    if bad:
        said = f"{counted(bad, 'point')} failed or invalid, see the table; retry_failed=true runs them again"
        print(said, file=sys.stderr)
    if left:
        spent = f"cluster.budget_s={cells[0].config.cluster.budget_s:g} is used up"
        print(f"{spent}: {counted(left, 'point')} left to run, the same command goes on", file=sys.stderr)
    return 3 if left else 1 if bad else 0


def _not_usable(cells: list[Cell], folder: Path) -> int:
    """Points of these cells, of this run or an earlier one, that are worth another try."""
    stored = stored_status(folder)
    return sum(
        stored.get((cell.cell_id, point.concurrency, point.repeat)) in RETRIED
        for cell in cells
        for point in (*cell.points, *cell.done)
    )


def _sweep(cells: list[Cell], folder: Path, console: Console, lock: Lock) -> tuple[Drawn | None, int]:
    """Run what is left, and draw what there is then, if anything; also how many points the budget left."""
    from analysis.draw import draw
    from harness.sensitivity import keep
    from harness.sweep import Sweep

    with SweepDisplay(console, cells) as display, _tracking(cells[0].config, display.say) as tracker:
        _catch_up(tracker, [cell for cell in cells if not cell.points])
        sweep = Sweep(cells, tracker, display, lock)
        sweep.run()
        if not stored_status(folder):
            return None, sweep.left
        keep([cell.config for cell in cells], folder)
        drawn = draw(folder)
        _log_figures(tracker, drawn, folder)
    return drawn, sweep.left


def _draw_again(cells: list[Cell], folder: Path) -> Drawn:
    """Draw what is all there; the tracker is given what an earlier run could not give it."""
    from analysis.draw import draw

    drawn = draw(folder)
    with _tracking(cells[0].config, print) as tracker:
        if _catch_up(tracker, cells):
            _log_figures(tracker, drawn, folder)
    return drawn


@contextmanager
def _tracking(config: Config, say: Callable[[str], None]) -> Iterator[Tracker]:
    tracker = make_tracker(config.tracker, experiment=config.name, results_dir=Path(config.results_dir), say=say)
    try:
        yield tracker
    finally:
        with shielded():
            tracker.close()


def _catch_up(tracker: Tracker, done: Sequence[Cell]) -> bool:
    return tracker.catch_up({cell.cell_id: to_plain(cell.config) for cell in done if cell.done})


def _log_figures(tracker: Tracker, drawn: Drawn, folder: Path) -> None:
    pngs = [path for path in drawn.figures if path.suffix == ".png"]
    table = read_rows(folder).to_dict("records")
    tracker.log_figures(pngs, [{str(k): v for k, v in row.items()} for row in table])


if __name__ == "__main__":
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left is the interpreter's own end
    sys.exit(code)
