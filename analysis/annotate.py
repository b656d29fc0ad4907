"""Point labels that stay readable: each goes where it hides nothing, or is left out.

Greedy: labels are placed in the order given; each tries the positions around its point and takes the one
that overlaps no marker and no earlier label and crosses the fewest lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

_MARKER_POINTS = 3.2  # half the width kept free around a point, in typographic points
_ANGLES = np.deg2rad([45, 135, 315, 225, 90, 270, 0, 180])  # preferred first
_DISTANCES = (3.5, 7.0)  # typographic points from the marker's edge


@dataclass(frozen=True, slots=True)
class PointLabel:
    """A text for the point (x, y), in data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def ends_first(count: int) -> list[int]:
    """Indices of a line's points by how much their label matters: last, first, then every second."""
    middle = list(range(1, count - 1))
    return list(dict.fromkeys([count - 1, 0, *middle[1::2], *middle[0::2]])) if count else []


def place(axes: Axes, labels: Sequence[PointLabel], lines: Sequence[np.ndarray]) -> list[Annotation]:
    """Write those labels that find room; `lines` are [n, 2] data points of the drawn lines.

    The figure's layout must be settled (call `figure.draw_without_rendering()` before).
    """
    scale = axes.figure.dpi / 72.0
    in_pixels = [axes.transData.transform(line) for line in lines]
    markers = np.concatenate(in_pixels) if in_pixels else np.empty((0, 2))
    along = np.concatenate([_dense(line) for line in in_pixels]) if in_pixels else np.empty((0, 2))
    taken = [_box(point, 2 * _MARKER_POINTS * scale, 2 * _MARKER_POINTS * scale) for point in markers]
    written = []
    for label in labels:
        note = _annotation(axes, label)
        place = _best_place(axes, note, label, taken, along, scale)
        if place is None:
            note.remove()
            continue
        offset, box = place
        note.set_position(tuple(offset / scale))
        taken.append(box)
        written.append(note)
    return written


def _annotation(axes: Axes, label: PointLabel) -> Annotation:
    note = axes.annotate(
        label.text,
        (label.x, label.y),
        (0, 0),
        textcoords="offset points",
        ha="center",
        va="center_baseline",
        color=label.colour,
        fontsize="x-small",
        zorder=6,
        path_effects=[patheffects.withStroke(linewidth=1.6, foreground="white")],
    )
    note.set_in_layout(False)
    return note


def _best_place(
    axes: Axes, note: Annotation, label: PointLabel, taken: list[Bbox], along: np.ndarray, scale: float
) -> tuple[np.ndarray, Bbox] | None:
    """(offset in pixels, box) of the free position that crosses the fewest lines; None: no room."""
    size = note.get_window_extent()
    point = axes.transData.transform((label.x, label.y))
    inside = axes.get_window_extent()
    best: tuple[int, np.ndarray, Bbox] | None = None
    for distance in _DISTANCES:
        reach = np.array([size.width, size.height]) / 2 + distance * scale
        for angle in _ANGLES:
            offset = np.array([np.cos(angle), np.sin(angle)]) * reach
            box = _box(point + offset, size.width, size.height)
            clipped = not (inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1))
            if clipped or box.count_overlaps(taken):
                continue
            crossed = int(np.sum(np.all((along > box.min) & (along < box.max), axis=1)))
            if best is None or crossed < best[0]:
                best = (crossed, offset, box)
    return None if best is None else best[1:]


def _box(centre: np.ndarray, width: float, height: float) -> Bbox:
    return Bbox.from_bounds(centre[0] - width / 2, centre[1] - height / 2, width, height)


def _dense(line: np.ndarray) -> np.ndarray:
    """A polyline as points at most two pixels apart."""
    pieces = [line[:1]]
    for start, end in pairwise(line):
        steps = max(1, int(np.ceil(np.linalg.norm(end - start) / 2)))
        pieces.append(start + (end - start) * np.linspace(0, 1, steps + 1)[1:, None])
    return np.concatenate(pieces)
