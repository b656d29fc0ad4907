"""Bytes and times as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: int | str) -> int:
    """`16MiB`, `1.5 GB` or a plain number, in bytes. Raises ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    if not match or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write bytes or a unit such as 512MiB, 1.5GiB, 40GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def show_bytes(count: float) -> str:
    """Three significant digits in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def show_seconds(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
