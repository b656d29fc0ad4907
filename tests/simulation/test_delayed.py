"""Arrivals that reach the engine later than they are due."""

from __future__ import annotations

from harness.simulation.pacing import ClosedLoop, Delayed


def test_each_arrival_comes_after_its_own_delay_and_keeps_its_time() -> None:
    pacing = Delayed(ClosedLoop(3, 2), lambda number: (0.5, 0.25, 0.125)[number])
    assert pacing.next_s() == 0.0
    assert pacing.due(0.0) == []
    assert pacing.next_s() == 0.25
    (second,) = pacing.due(0.3)
    assert (second.number, second.time_s) == (1, 0.0)
    (first,) = pacing.due(0.5)
    assert (first.number, first.time_s) == (0, 0.0)
    assert pacing.next_s() is None
    pacing.ended(first, 2.0)
    assert pacing.next_s() == 2.0
    assert pacing.due(2.0) == []
    (third,) = pacing.due(2.125)
    assert (third.number, third.time_s, third.worker) == (2, 2.0, first.worker)


def test_no_delay_changes_nothing() -> None:
    plain, delayed = ClosedLoop(4, 2, 0.1), Delayed(ClosedLoop(4, 2, 0.1), lambda number: 0.0)
    for now in (0.0, 0.05, 0.1, 0.2):
        assert delayed.due(now) == plain.due(now)
        assert delayed.next_s() == plain.next_s()
