"""Draw one experiment's figures, print its tables and write its report; or measure its stored requests again.

python -m analysis results/quickstart
python -m analysis recompute results/quickstart --slo-ttft-ms 500
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from analysis.draw import draw
from analysis.recompute import recompute
from analysis.tables import Fitted

_WIDTH = 100  # columns the tables are made for
_SLOS = ("slo_ttft_ms", "slo_tpot_ms", "slo_e2el_ms")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 where the folder cannot be read, with one line that says why."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _recompute(words[1:]) if words[:1] == ["recompute"] else _draw(words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _draw(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Figures, tables, report.html. `recompute FOLDER` measures stored requests again.",
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


def _above_zero(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


if __name__ == "__main__":
    sys.exit(main())
