"""Cells in flight together: never more than fit, all of them in the end, and nobody left waiting when one breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.patience import Patience, Stopped
from harness.schema import ClusterConfig
from harness.side_by_side import SideBySide


class Cell:
    def __init__(self, size: int):
        self.size = size


class Room:
    """Of so many places; cells take as many as they are large."""

    def __init__(self, places: int):
        self.places, self.used, self.most = places, 0, 0
        self.ran: list[Cell] = []
        self._lock = threading.Lock()

    def fits(self, running: Sequence[Cell], another: Cell) -> bool:
        return sum(cell.size for cell in running) + another.size <= self.places

    def run(self, cell: Cell) -> None:
        with self._lock:
            self.used += cell.size
            self.most = max(self.most, self.used)
        time.sleep(0.002)
        with self._lock:
            self.used -= cell.size
            self.ran.append(cell)


@settings(max_examples=15)
@given(sizes=st.lists(st.integers(1, 4), max_size=8), places=st.integers(4, 6))
def test_never_more_than_fit_and_all_in_the_end(sizes: list[int], places: int) -> None:
    room, cells = Room(places), [Cell(size) for size in sizes]
    SideBySide(room.run, room.fits, Patience(ClusterConfig())).all(cells)
    assert sorted(map(id, room.ran)) == sorted(map(id, cells))
    assert room.most <= places


def test_cells_do_run_at_once_and_know_of_each_other() -> None:
    both = threading.Barrier(2, timeout=200)  # passed only by two at once
    met: dict[int, list[Cell]] = {}

    def run(cell: Cell) -> None:
        both.wait()
        met[cell.size] = flight.beside(cell)

    cells = [Cell(1), Cell(2)]
    flight = SideBySide(run, lambda running, another: True, Patience(ClusterConfig()))
    flight.all(cells)
    assert met == {1: [cells[1]], 2: [cells[0]]}


def test_a_cell_that_fits_nowhere_runs_alone() -> None:
    room, cells = Room(2), [Cell(1), Cell(5), Cell(1)]
    SideBySide(room.run, room.fits, Patience(ClusterConfig())).all(cells)
    assert len(room.ran) == 3


def test_what_one_raises_ends_the_others_and_is_raised() -> None:
    patience = Patience(ClusterConfig())
    ended: list[str] = []
    started = threading.Event()

    def run(cell: Cell) -> None:
        if cell.size == 1:
            started.wait(200)
            raise ValueError("broken")
        started.set()
        try:
            while True:
                patience.check()
                time.sleep(0.01)
        except Stopped:
            ended.append("stopped")
            raise

    with pytest.raises(ValueError, match="broken"):
        SideBySide(run, lambda running, another: len(running) < 2, patience).all([Cell(1), Cell(2), Cell(3)])
    assert ended == ["stopped"]


def test_nothing_new_starts_once_the_budget_is_spent() -> None:
    now = 0.0
    ran: list[Cell] = []
    patience = Patience(ClusterConfig(budget_s=10.0), now=lambda: now)

    def run(cell: Cell) -> None:
        nonlocal now
        ran.append(cell)
        now = 20.0

    cells = [Cell(1), Cell(1)]
    SideBySide(run, lambda running, another: False, patience).all(cells)
    assert ran == cells[:1]
