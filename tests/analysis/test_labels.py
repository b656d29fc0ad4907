"""Words, colours and numbers as they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
