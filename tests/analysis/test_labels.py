"""Words, colours and numbers as they are shown."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.markers import MarkerStyle

from analysis import labels


def test_listed_systems_differ_in_colour_and_marker() -> None:
    styles = [*labels.SYSTEMS.values(), labels.style_of("avsg")]
    assert len({style.colour for style in styles}) == len({style.marker for style in styles}) == len(styles)


def test_an_unknown_system_keeps_its_look_and_gets_its_own_words() -> None:
    style = labels.style_of("layer_pipeline")
    assert style == labels.style_of("layer_pipeline")
    assert style.words == "layer pipeline"


def test_the_baseline_comes_first_and_the_oracle_last() -> None:
    systems = sorted(["no_io_oracle", "avsg", "hisparse_sync", "full_kv", "fetch_all"], key=labels.system_order)
    assert systems == ["full_kv", "fetch_all", "hisparse_sync", "avsg", "no_io_oracle"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0, "0"), (1.234, "1.23"), (12.34, "12.3"), (99.99, "100.0"), (123.4, "123"), (12345.6, "12,346")],
        *[(0.01234, "0.0123"), (None, "–"), (float("nan"), "–"), (float("inf"), "–")],
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert labels.number(value) == text


@given(st.floats(min_value=0.01, max_value=1e12))
def test_a_number_is_shown_to_within_one_percent(value: float) -> None:
    assert float(labels.number(value).replace(",", "")) == pytest.approx(value, rel=0.01)


def test_shares_counts_and_times() -> None:
    assert (labels.percent(0.9314), labels.percent(None)) == ("93.1%", "–")
    assert (labels.count(3.0), labels.count(3.5), labels.count(1e6)) == ("3", "3.5", "1,000,000")
    assert labels.time_unit(2999) == ("ms", 1.0)
    assert labels.time_unit(275_000) == ("s", 1000.0)


def test_lighten_moves_towards_white() -> None:
    assert labels.lighten("#0072B2", 0) == "#0072B2"
    assert labels.lighten("#0072B2", 1) == "#FFFFFF"
    assert labels.lighten("#000000", 0.5) == "#808080"


def test_shades_are_spread_evenly_and_never_saturate() -> None:
    reds = [int(labels.shade("#0072B2", rank, 6)[1:3], 16) for rank in range(6)]
    assert labels.shade("#0072B2", 0, 1) == labels.shade("#0072B2", 0, 6) == "#0072B2"
    steps = [b - a for a, b in pairwise(reds)]
    assert min(steps) > 25 and max(steps) - min(steps) <= 1
    assert reds[-1] < 200


@pytest.mark.parametrize("system", [*labels.SYSTEMS, "avsg", "layer_pipeline"])
def test_lines_of_one_system_begin_with_its_marker_and_differ(system: str) -> None:
    style = labels.style_of(system)
    shapes = [labels.marker(style, rank) for rank in range(8)]
    assert shapes[0] == style.marker
    assert len(set(shapes)) == 8
    assert labels.marker(style, 1000) in shapes + [labels.marker(style, 8), labels.marker(style, 9)]


def test_every_marker_has_room_inside_for_a_hollow_look() -> None:
    styles = [*labels.SYSTEMS.values(), *map(labels.style_of, ("avsg", "ab", "cd", "ef", "gh", "ij"))]
    for shape in {labels.marker(style, rank) for style in styles for rank in range(9)}:
        marker = MarkerStyle(shape)
        path = marker.get_path().transformed(marker.get_transform())
        outline = path.to_polygons()[0]
        middle = (outline.min(axis=0) + outline.max(axis=0)) / 2
        turn = np.linspace(0, 2 * np.pi, 24)
        inside = middle + 0.2 * np.column_stack([np.cos(turn), np.sin(turn)])
        assert path.contains_points(inside).all(), shape


@given(st.sampled_from([style.colour for style in labels.SYSTEMS.values()]), st.integers(0, 7))
def test_text_in_any_shade_is_readable_on_white(colour: str, rank: int) -> None:
    assert labels.contrast(labels.readable(labels.shade(colour, rank, 8))) >= 4.5


def test_contrast_and_readable_at_the_ends() -> None:
    assert labels.contrast("#FFFFFF") == pytest.approx(1)
    assert labels.contrast("#000000") == pytest.approx(21)
    assert labels.readable("#0072B2") == "#0072B2"


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0 bytes"), (1536, "1.5 KiB"), (10_066_329, "9.6 MiB"), (512 << 20, "512 MiB")]
)
def test_size(amount: int, text: str) -> None:
    assert labels.size(amount) == text


def test_plural() -> None:
    assert [labels.plural(n, "point") for n in (0, 1, 2, 1000)] == ["0 points", "1 point", "2 points", "1,000 points"]
