"""Draw one experiment's figures, print its tables and write its report.

python -m analysis results/quickstart
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from analysis.draw import draw

_WIDTH = 100  # columns the tables are made for


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 where the folder cannot be read, with one line that says why."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Figures, tables, report.html.")
    parser.add_argument("experiment_dir", type=Path, help="one experiment's folder, such as results/quickstart")
    parser.add_argument("--out", type=Path, help="where to write (default: EXPERIMENT_DIR/figures)")
    options = parser.parse_args(arguments)
    try:
        drawn = draw(options.experiment_dir, options.out)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(drawn.summary)
    # plain prints: a path must stay one word, however long
    print(f"{len(drawn.figures)} figure files in {drawn.report.parent}")
    print(f"report: {drawn.report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
