"""The arithmetic of the emulated link against a record-by-record account of `harness.engine.kv.link`'s rules."""

from __future__ import annotations

import numpy as np
import pytest

from harness.schema import LinkConfig
from harness.simulation.link_time import LinkTime

LINK = LinkTime(record_s=1e-5, late_s=1e-4)


def waited(compute: float, missed: int, demanded: list[bool], written: int) -> float:
    """One step, event by event: transfers queue on one link in the order of submission."""
    layer = compute / len(demanded)
    free, now, total = written * LINK.record_s, 0.0, 0.0
    arrivals: dict[int, float] = {}
    for at, demands in enumerate(demanded):
        now += layer
        if demands:
            following = [n for n in range(at + 1, len(demanded)) if not any(demanded[at + 1 : n + 1])]
            for layer_of_transfer in [at, *following]:
                free = max(now, free) + missed * LINK.record_s
                arrivals[layer_of_transfer] = free + LINK.late_s
        total += max(0.0, arrivals[at] - now)
        now = max(now, arrivals[at])
    return total


@pytest.mark.parametrize("anchors", [[0, 1, 2, 3, 4, 5, 6, 7], [0, 4], [0], [0, 1, 5]])
@pytest.mark.parametrize("missed", [20, 200, 2000])
@pytest.mark.parametrize("compute", [4e-3, 40e-3])
@pytest.mark.parametrize("written", [0, 800])
def test_a_decode_step_waits_as_the_link_makes_it(
    anchors: list[int], missed: int, compute: float, written: int
) -> None:
    demanded = [layer in anchors for layer in range(8)]
    found = LINK.decode(np.full(3, compute), np.full(3, float(missed)), demanded, written)
    assert found == pytest.approx([waited(compute, missed, demanded, written)] * 3, rel=1e-6, abs=1e-9)


def test_what_rarely_misses_rarely_waits() -> None:
    (rare,) = LINK.decode(np.array([8e-3]), np.array([0.01]), [True] * 8, 0)
    assert rare == pytest.approx(8 * 0.01 * (1e-5 + 1e-4), rel=0.02)


def test_prefill_ends_when_its_last_record_has_left() -> None:
    """100 records a layer of 8, 1 ms each on the link: computing in 4 ms, the link needs 8."""
    took, still = LINK.chunk(4e-3, 8, 0, 100)
    assert took == pytest.approx(4e-3)
    assert took + still == pytest.approx(8e-3 + 1e-4)
    took, still = LINK.chunk(40e-3, 8, 0, 100)  # computing in 40: the last layer's alone is left... and has arrived
    assert (took, still) == (pytest.approx(40e-3), 0.0)
    took, _ = LINK.chunk(4e-3, 8, 50, 100)  # earlier records come back behind what is staged, layer by layer
    assert took == pytest.approx(8 * (1.5e-3 + 1e-4 + 0.5e-3), rel=0.05)


def test_a_memory_copy_is_no_link() -> None:
    assert LinkTime.of(LinkConfig(), 640, 0.0) is None
    assert LinkTime.of(LinkConfig(bandwidth=64_000_000, latency_us=10), 640, 5e-6) == LinkTime(
        1e-5, pytest.approx(15e-6)
    )
