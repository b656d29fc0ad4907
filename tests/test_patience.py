"""Deadlines, retries and the budget, on a clock that only moves when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.instances import InstanceError
from harness.offline import OfflineError
from harness.patience import LONGEST_PAUSE_S, OutOfTime, Patience, Stopped, may_pass
from harness.schema import ClusterConfig


class Clock:
    """Its time, and a wait that passes it."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.time_s

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def patience(clock: Clock) -> Callable[..., Patience]:
    return lambda **keys: Patience(ClusterConfig(**keys), now=clock.now, wait=clock.wait)


def test_the_pauses_double_up_to_a_limit(patience: Callable[..., Patience], clock: Clock) -> None:
    own = patience(retry_wait_s=5.0)
    for failures in range(1, 9):
        own.pause(failures)
    assert clock.waits == [5, 10, 20, 40, 80, 160, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


@given(retries=st.integers(0, 6), failures=st.lists(st.booleans(), min_size=1, max_size=12))
def test_what_may_pass_is_tried_so_often_and_nothing_else_is(retries: int, failures: list[bool]) -> None:
    tries = Patience(ClusterConfig(retries=retries)).tries()
    made = 1
    for passing in failures:
        again = tries.again(InstanceError("gone", may_pass=passing))
        if not again:
            assert not passing or made == retries + 1
            break
        made += 1
        assert tries.number == made
    assert made <= retries + 1
    assert len(tries.failures) == made - 1


def test_a_reason_says_how_often_it_was_tried(patience: Callable[..., Patience]) -> None:
    tries = patience(retries=1).tries()
    lost, final = InstanceError("node lost", may_pass=True), InstanceError("no such flag")
    assert tries.note(final) == "no such flag"
    assert tries.again(lost) and not tries.again(lost)
    assert tries.note(lost) == "node lost (try 2 of 2)"
    assert tries.failures == ["node lost"]


def test_which_errors_may_pass() -> None:
    assert may_pass(InstanceError("killed", may_pass=True)) and may_pass(OfflineError("died", may_pass=True))
    assert not any(map(may_pass, (InstanceError("x"), OfflineError("x"), ValueError("x"), KeyError("x"))))
    assert not may_pass(OutOfTime("x", whole_cell=True))


def test_a_deadline_is_met_or_named(patience: Callable[..., Patience], clock: Clock) -> None:
    own = patience(cell_timeout_s=100.0, point_timeout_s=30.0)
    cell, point = own.cell(), own.point()
    clock.time_s += 29.9
    own.check(cell, point)
    clock.time_s += 0.1
    with pytest.raises(OutOfTime, match=r"the point took longer than cluster.point_timeout_s=30") as late:
        own.check(cell, point)
    assert not late.value.whole_cell
    own.until(cell, own.point())()  # the next point has time of its own
    clock.time_s += 70
    with pytest.raises(OutOfTime, match=r"the cell took longer than cluster.cell_timeout_s=100") as late:
        own.until(cell, own.point())()
    assert late.value.whole_cell


def test_without_limits_time_does_not_matter(patience: Callable[..., Patience], clock: Clock) -> None:
    own = patience()
    check = own.until(own.cell(), own.point())
    clock.time_s += 1e9
    check()
    assert not own.spent


def test_the_budget_is_for_the_whole_run(patience: Callable[..., Patience], clock: Clock) -> None:
    own = patience(budget_s=60.0)
    clock.time_s += 59
    assert not own.spent
    clock.time_s += 1
    assert own.spent
    own.check()  # what runs is not cut short


def test_stopping_cuts_a_pause_short_and_ends_whoever_checks() -> None:
    own = Patience(ClusterConfig(retry_wait_s=200.0))
    ended: list[type] = []

    def waits() -> None:
        try:
            own.pause(1)
        except Stopped as error:
            ended.append(type(error))

    thread = threading.Thread(target=waits)
    thread.start()
    own.stop()
    thread.join(150)
    assert ended == [Stopped] and own.spent
    with pytest.raises(Stopped):
        own.until(own.cell())()
