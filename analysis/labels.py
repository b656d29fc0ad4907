"""The words, colours and markers of the offload systems, and how numbers are written.

Listed systems have colours of the Okabe-Ito set, which stays apart for colour-blind readers; markers tell the systems
apart once more where colour is lost in print.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

BASELINE = "full_kv"
MISSING = "–"


@dataclass(frozen=True, slots=True)
class SystemStyle:
    """How one offload system appears wherever it is shown."""

    words: str  # in legends
    short: str  # in tables
    colour: str
    marker: str
    linestyle: str = "-"
    shows_slots: bool = False  # its B is always named, also where only one was run


SYSTEMS: dict[str, SystemStyle] = {
    BASELINE: SystemStyle("Full KV (baseline)", "Full KV", "#D55E00", "s"),
    "fetch_all": SystemStyle("Fetch all", "Fetch all", "#CC79A7", "^"),
    "hisparse_sync": SystemStyle("HiSparse, sync", "HiSparse, sync", "#0072B2", "o", shows_slots=True),
    "hisparse_prefetch": SystemStyle("HiSparse, prefetch", "HiSparse, prefetch", "#009E73", "D", shows_slots=True),
    "no_io_oracle": SystemStyle("No-IO oracle (outputs invalid)", "No-IO oracle*", "#8A8A8A", "X", ":"),
}
_SPARE_COLOURS = ("#5D3A9B", "#B07D00", "#6B4226")
_SPARE_MARKERS = ("P", "v", "p", "h")


def style_of(system: str) -> SystemStyle:
    """The style of a system; one not listed gets a look that depends on its name alone."""
    if system in SYSTEMS:
        return SYSTEMS[system]
    code = zlib.crc32(system.encode())
    colour = _SPARE_COLOURS[code % len(_SPARE_COLOURS)]
    marker = _SPARE_MARKERS[code // len(_SPARE_COLOURS) % len(_SPARE_MARKERS)]
    words = system.replace("_", " ")
    return SystemStyle(words, words, colour, marker, shows_slots=True)


def system_order(system: str) -> tuple[int, str]:
    """Sort key: baseline first, known systems as listed, others by name, the oracle last."""
    known = list(SYSTEMS)
    if system == "no_io_oracle":
        return len(known) + 1, system
    return (known.index(system) if system in SYSTEMS else len(known)), system


def lighten(colour: str, share: float) -> str:
    """`#RRGGBB` moved towards white by `share` (0: unchanged, 1: white)."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * share):02X}" for c in channels)


def time_unit(longest_ms: float) -> tuple[str, float]:
    """Unit in which durations up to `longest_ms` read well, and what to divide milliseconds by."""
    return ("s", 1000.0) if longest_ms >= 3000 else ("ms", 1.0)


def number(value: float | None) -> str:
    """Three significant digits or all of the integer part, thousands marked; a dash for no value."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if abs(value) < 100 else 0
    return f"{value:,.{min(decimals, 4)}f}"


def percent(share: float | None) -> str:
    """A share of 1 as a percentage with one decimal; a dash for no value."""
    return MISSING if share is None or not math.isfinite(share) else f"{100 * share:.1f}%"


def count(value: float | None) -> str:
    """A count, with one decimal only where a mean over repeats is not whole; a dash for no value."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
