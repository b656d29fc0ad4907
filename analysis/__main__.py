"""Draw one experiment's figures, print its tables and write its report; measure its stored requests again; or compare
measured with simulated results.

python -m analysis results/quickstart
python -m analysis compare results/fig8_small results/fig8_small_predicted
python -m analysis recompute results/quickstart --slo-ttft-ms 500
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from analysis import canvas, prediction_figure
from analysis.draw import draw
from analysis.prediction import compare, errors_table, points_table
from analysis.recompute import recompute
from analysis.tables import Fitted

_WIDTH = 100  # columns the tables are made for
_SLOS = ("slo_ttft_ms", "slo_tpot_ms", "slo_e2el_ms")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 where the folder cannot be read, with one line that says why."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _COMMANDS.get(words[0] if words else "", lambda _: _draw(words))(words[1:])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _draw(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Figures, tables, report.html. `recompute FOLDER` measures stored requests again; "
        "`compare FOLDERS` sets simulated points beside measured ones.",
    )
    parser.add_argument("experiment_dir", type=Path, help="one experiment's folder, such as results/quickstart")
    parser.add_argument("--out", type=Path, help="where to write (default: EXPERIMENT_DIR/figures)")
    options = parser.parse_args(words)
    drawn = draw(options.experiment_dir, options.out)
    _console().print(drawn.summary)
    # plain prints: a path must stay one word, however long
    print(f"{len(drawn.figures)} figure files in {drawn.report.parent}")
    print(f"report: {drawn.report}")
    return 0


def _recompute(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis recompute", description="Measures of stored requests by today's definitions."
    )
    parser.add_argument("experiment_dir", type=Path)
    parser.add_argument("--out", type=Path, help="where recomputed.csv goes (default: EXPERIMENT_DIR/figures)")
    for name in _SLOS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=_above_zero, metavar="MS", help="instead of the limit the points ran with")
    options = parser.parse_args(words)
    slo = {name: getattr(options, name) for name in _SLOS if getattr(options, name) is not None}
    found = recompute(options.experiment_dir, slo, options.out)
    _console().print(Fitted(found.table()))
    for line in found.differences:
        print(f"differs: {line}")
    print(f"{len(found.rows)} points measured again, {len(found.differences)} stored measures differ: {found.file}")
    return 0


def _compare(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis compare", description="How far simulated points are from measured ones of their cells."
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="results, measured and simulated")
    parser.add_argument("--out", type=Path, help="where figures and comparison.csv go (default: LAST/comparison)")
    options = parser.parse_args(words)
    comparison = compare(options.folders)
    out = options.out or options.folders[-1] / "comparison"
    out.mkdir(parents=True, exist_ok=True)
    console = _console()
    for number, (title, points) in enumerate(comparison.groups()):
        console.print(title, highlight=False)
        console.print(Fitted(points_table(points)))
        canvas.save(prediction_figure.build(points, title), out / f"comparison{number or ''}")
    console.print(Fitted(errors_table(comparison)))
    comparison.points.to_csv(out / "comparison.csv", index=False)
    print(f"{len(comparison.points)} points compared, {comparison.unpaired} only on one side: {out}")
    return 0


def _above_zero(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


_COMMANDS = {"recompute": _recompute, "compare": _compare}


if __name__ == "__main__":
    sys.exit(main())
