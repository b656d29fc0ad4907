"""Bytes and times as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.units import common_unit, parse_bytes, show_bytes, show_in, show_seconds

SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("12B", 12),
        ("16MiB", 16 << 20),
        ("16 mib", 16 << 20),
        ("1.5GB", 1_500_000_000),
        (" 2 TiB ", 2 << 40),
        ("0.5KB", 500),
    ],
)
def test_sizes_are_read(text: int | str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "lots", "-1", -1, "1.5.2GB", "10 Mib B", "1e9", "MiB", "5 KBit", "nan", "None"])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(ValueError, match=r"is not a size; write bytes or a unit such as 512MiB") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (224, "224 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (4320, "4.22 KiB"),
        (1023 * 1024, "0.999 MiB"),
        (2240 << 10, "2.19 MiB"),
        (1 << 30, "1 GiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_sizes_are_shown(count: int, text: str) -> None:
    assert show_bytes(count) == text


@given(st.integers(0, 2**50))
def test_shown_sizes_are_close_and_short(count: int) -> None:
    text = show_bytes(count)
    number, unit = text.split()
    assert abs(float(number) * SIZES[unit] - count) <= 0.006 * count
    assert len(text) <= 9 and "e" not in number
    assert abs(parse_bytes(text) - count) <= 0.006 * count + 1


@given(st.integers(1, 2**54))
def test_a_columns_unit_keeps_its_largest_short(largest: int) -> None:
    unit = common_unit(largest)
    assert largest < 10_000 * SIZES[unit] or unit == "TiB"
    smaller = [size for size in SIZES.values() if size < SIZES[unit]]
    assert not smaller or largest >= 10_000 * max(smaller)


@pytest.mark.parametrize(
    ("count", "unit", "text"),
    [
        (0, "KiB", "-"),
        (3, "KiB", "<0.01"),
        (224, "KiB", "0.22"),
        (10 * 1024 - 1, "KiB", "10.0"),
        (322 << 10, "KiB", "322"),
        (2240 << 10, "KiB", "2,240"),
        (7, "B", "7"),
    ],
)
def test_numbers_of_a_column(count: int, unit: str, text: str) -> None:
    assert show_in(count, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (44.6, "45 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.9, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_times_are_shown(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text
