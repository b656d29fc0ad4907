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
    "no_io_oracle": SystemStyle("No-IO oracle (outputs invalid)", "No-IO oracle*", "#8A8A8A", "v", ":"),
}
_SPARE_COLOURS = ("#5D3A9B", "#B07D00", "#6B4226")
# only shapes with room inside, so that a hollow marker looks hollow
_SPARE_MARKERS = ("p", "h", "<", ">")
_MARKER_CYCLE = ("o", "^", "D", "v", "s", "p", "<", "h", ">")
_PALEST = 0.6  # share of white in the lightest shade of a system
_CONTRAST = 4.5  # of text on white, as WCAG 2 asks for


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
    return "#" + "".join(f"{round(c + (255 - c) * share):02X}" for c in _channels(colour))


def shade(colour: str, rank: int, count: int) -> str:
    """The colour of the `rank`-th of a system's `count` lines: evenly from `colour` to a lighter shade."""
    return lighten(colour, _PALEST * rank / max(1, count - 1))


def marker(style: SystemStyle, rank: int) -> str:
    """The marker of the `rank`-th of a system's lines: its own first, then each of the others in turn."""
    cycle = [style.marker, *(shape for shape in _MARKER_CYCLE if shape != style.marker)]
    return cycle[rank % len(cycle)]


def readable(colour: str) -> str:
    """`#RRGGBB` darkened as little as text on white needs."""
    share = 0.0
    while contrast(darker := _scale(colour, 1 - share)) < _CONTRAST:
        share += 0.02
    return darker


def contrast(colour: str) -> float:
    """The WCAG 2 contrast ratio of `#RRGGBB` on white, 1 to 21."""
    shares = [c / 255 for c in _channels(colour)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _scale(colour: str, factor: float) -> str:
    return "#" + "".join(f"{round(c * factor):02X}" for c in _channels(colour))


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


def size(count_bytes: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1: `9.6 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count_bytes < 1024:
            return f"{count_bytes:,.4g} {unit}"
        count_bytes /= 1024
    return f"{count_bytes:,.4g} TiB"


def plural(amount: int, word: str) -> str:
    """`1 point`, `2 points`."""
    return f"{amount:,} {word}" + ("" if amount == 1 else "s")
