"""Lanes at the edges of their contract: between `submit` and `wait` a copy may happen at any moment, in any order."""

from __future__ import annotations

import random

from harness.engine.kv.hierarchy import Hierarchy
from harness.engine.kv.lanes import Lane, Lanes, Transfer
from harness.engine.kv.link import Link
from harness.schema import LinkConfig


class Clock:
    """Stands in for the `time` module: time passes when somebody sleeps or computes, and by nothing else."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class LazyLanes(Lanes):
    """Copies happen when somebody needs them, never before."""

    def __init__(self, link: LinkConfig | None = None) -> None:
        super().__init__(Link(link or LinkConfig()))

    def _hand_over(self, transfer: Transfer) -> None:
        """Nobody comes first."""


class EagerLanes(LazyLanes):
    """Copies happen at once, before anything else does."""

    def _hand_over(self, transfer: Transfer) -> None:
        transfer.make()


class RandomLanes(LazyLanes):
    """Whenever something is submitted or waited for, some of the copies not made yet are made, in any order."""

    def __init__(self, seed: int):
        super().__init__()
        self._rng, self._open = random.Random(seed), list[Transfer]()

    def submit(self, lane: Lane, copy: object, num_bytes: int) -> Transfer:
        self._stir()
        return super().submit(lane, copy, num_bytes)  # type: ignore[arg-type]

    def wait(self, transfer: Transfer) -> None:
        self._stir()
        super().wait(transfer)

    def _hand_over(self, transfer: Transfer) -> None:
        self._open.append(transfer)

    def _stir(self) -> None:
        self._rng.shuffle(self._open)
        for _ in range(self._rng.randint(0, len(self._open))):
            self._open.pop().make()


def with_lanes(kv: object, lanes: Lanes) -> Hierarchy:
    """Give a KV side of a fresh engine other lanes."""
    assert isinstance(kv, Hierarchy)
    kv.lanes = lanes
    return kv
