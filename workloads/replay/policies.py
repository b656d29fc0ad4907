"""The replacement policies by name: what each does, where it comes from, and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Bounds(NamedTuple):
    """A parameter's default and the range it must lie in."""

    default: int
    low: int
    high: int


class Policy(NamedTuple):
    """A policy; `code` is its number in replay.cpp, and its parameters go there in this order."""

    code: int
    summary: str
    parameters: Mapping[str, Bounds] = {}


POLICIES: dict[str, Policy] = {
    "lru": Policy(0, "HiSparse's order, by the engine's kernel: stale, then misses, then hits (sections 3.2, 3.4)"),
    "lru_plain": Policy(1, "least recently selected, in selection order, hit or miss"),
    "fifo": Policy(2, "first fetched, first out"),
    "random": Policy(3, "any resident that the step does not select, by the seed"),
    "staging": Policy(4, "keeps the current selection only; B plays no part (HiSparse, section 4.3)"),
    "belady": Policy(5, "offline optimum: what is selected again furthest in the future leaves (Belady, 1966)"),
    "bucketed_lru": Policy(
        6,
        "recency in buckets of whole steps, the idea of SPIN (arXiv 2604.26837)",
        {"buckets": Bounds(8, 1, 1 << 16), "steps": Bounds(4, 1, 1 << 16)},
    ),
    "clock": Policy(7, "second chance: a hand spares once what was hit since it last came by"),
    "lfu": Policy(8, "least frequently selected since it came, ties by the longest unselected"),
    "slru": Policy(9, "segmented LRU (Karedla et al., 1994)", {"protected_percent": Bounds(80, 0, 100)}),
    "s3fifo": Policy(10, "three FIFO queues (Yang et al., SOSP 2023)", {"small_percent": Bounds(10, 1, 99)}),
    "arc": Policy(11, "adaptive replacement cache (Megiddo and Modha, FAST 2003)"),
    "lifetime": Policy(
        12, "AVSG's lives (section 3.5), with a table that loses nothing", {"life": Bounds(127, 1, 254)}
    ),
    "avsg": Policy(
        13,
        "AVSG whole, by hisparse_kernels' code: the probed table may lose what the cache holds (section 3.3)",
        {"life": Bounds(127, 1, 254), "probes": Bounds(8, 0, 1 << 16)},
    ),
}
MAX_CACHE_SLOTS = 65_533


@dataclass(frozen=True)
class ReplayConfig:
    """One cache to replay: a policy, its slots per request and layer (B), and how a sequence begins.

    tail: the cache begins as the engine's does, with the last B positions of the prompt; else empty.
    tokens: rows of the stream that are one step (1 + N with MTP-N, AVSG section 3.6): they are resolved in order, all
    they select stays resident until the step ends, and entries of its unverified positions are then invalidated.
    parameters: those of the policy that shall differ from their defaults.
    Raises ValueError.
    """

    policy: str
    cache_slots: int
    seed: int = 0
    tail: bool = True
    tokens: int = 1
    parameters: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy} is none of {', '.join(POLICIES)}")
        if not 1 <= self.cache_slots <= MAX_CACHE_SLOTS:
            raise ValueError(f"cache_slots={self.cache_slots} is outside [1, {MAX_CACHE_SLOTS}]")
        if self.tokens < 1:
            raise ValueError(f"tokens={self.tokens} must be at least 1")
        known = POLICIES[self.policy].parameters
        for name, value in self.parameters.items():
            if name not in known:
                raise ValueError(f"{self.policy} has no parameter {name}; it has {', '.join(known) or 'none'}")
            if not known[name].low <= value <= known[name].high:
                raise ValueError(f"{name}={value} is outside [{known[name].low}, {known[name].high}]")

    @property
    def arguments(self) -> tuple[int, int]:
        """The policy's parameters as replay.cpp takes them."""
        known = POLICIES[self.policy].parameters
        values = [self.parameters.get(name, bounds.default) for name, bounds in known.items()]
        first, second = (*values, 0, 0)[:2]
        return first, second
