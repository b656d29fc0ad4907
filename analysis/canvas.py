"""How every figure looks and how it is written: one style, PDF and PNG and SVG, the same rows the same bytes."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

NUMBERS = FuncFormatter(lambda value, _: f"{value:,g}")
STYLE = {
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper", font_scale=0.95),
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same figure everywhere
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "path",
}


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.pdf and `stem`.png (200 dpi); the same rows give the same bytes."""
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("pdf", "png")]
    with mpl.rc_context(STYLE):
        figure.savefig(paths[0], metadata={"CreationDate": None})
        figure.savefig(paths[1], dpi=200)
    return paths


def svg(figure: Figure) -> bytes:
    """The figure as a self-contained SVG document; the same rows give the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": "analysis"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
