"""Bytes and times as people write and read them."""

from __future__ import annotations

import re

_BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {name.upper(): size for name, size in _BINARY.items()}


def parse_bytes(text: int | str) -> int:
    """`16MiB`, `1.5 GB` or a plain number, in bytes. Raises ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    if not match or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write bytes or a unit such as 512MiB, 1.5GiB, 40GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def show_bytes(count: float) -> str:
    """Three significant digits in binary units, `2.19 MiB`; whole bytes."""
    unit = next((name for name, size in _BINARY.items() if abs(count) < 999.5 * size), "TiB")
    number = count / _BINARY[unit]
    return f"{number:.0f} {unit}" if unit == "B" or abs(number) >= 1000 else f"{number:.3g} {unit}"


def show_rate(bytes_per_second: float) -> str:
    """Three significant digits in decimal units, as links are sold: `2 GB/s`, `250 MB/s`."""
    unit, size = ("GB/s", 1e9) if bytes_per_second >= 1e9 else ("MB/s", 1e6)
    return f"{bytes_per_second / size:.3g} {unit}"


def common_unit(largest: float) -> str:
    """The binary unit for a column of byte counts: the smallest in which its largest stays below 10,000."""
    return next((name for name, size in _BINARY.items() if largest < 10_000 * size), "TiB")


def show_in(count: float, unit: str) -> str:
    """A byte count as a bare number of a binary unit, three digits or more; `-` for none."""
    number = count / _BINARY[unit]
    if count == 0:
        return "-"
    if unit == "B" or number >= 99.95:
        return f"{number:,.0f}"
    return "<0.01" if number < 0.01 else f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"


def show_seconds(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(count: int, noun: str) -> str:
    """`1 point`, `2 points`."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"
