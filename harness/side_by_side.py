"""Cells in flight together: each in a thread of its own, another one started whenever it fits beside those that run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from harness.interrupts import shielded
from harness.patience import Patience

POLL_S = 0.2

C = TypeVar("C")


class SideBySide(Generic[C]):
    """Runs cells in their order, except that a smaller one may pass one that does not fit yet."""

    def __init__(self, run: Callable[[C], None], fits: Callable[[Sequence[C], C], bool], patience: Patience):
        self._run, self._fits, self._patience = run, fits, patience
        self._running: dict[Future[None], C] = {}
        self._lock = threading.Lock()
        self._met: dict[int, list[C]] = {}  # of each running cell, by its id(): who ran beside it since it last asked

    def beside(self, cell: C) -> list[C]:
        """Those that have run beside this one since it last asked."""
        with self._lock:
            met = self._met.get(id(cell), [])
            self._met[id(cell)] = [other for other in self._running.values() if other is not cell]
        return met

    def all(self, cells: Sequence[C]) -> None:
        """Returns when all have run or the patience is spent. Raises what a cell raised, once the others have ended."""
        left = list(cells)
        with ThreadPoolExecutor(max_workers=max(1, len(left)), thread_name_prefix="cell") as pool:
            try:
                while (left and not self._patience.spent) or self._running:
                    while not self._patience.spent and (chosen := self._next(left)) is not None:
                        left.remove(chosen)
                        self._start(pool, chosen)
                    self._collect()
            except BaseException:
                self._patience.stop()
                with shielded():
                    pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _next(self, left: Sequence[C]) -> C | None:
        """Alone a cell always runs: whether it has room at all is found out when it is placed."""
        running = list(self._running.values())
        return next((cell for cell in left if not running or self._fits(running, cell)), None)

    def _start(self, pool: ThreadPoolExecutor, cell: C) -> None:
        with self._lock:
            for other in self._running.values():
                self._met[id(other)].append(cell)
            self._met[id(cell)] = list(self._running.values())
            self._running[pool.submit(self._run, cell)] = cell

    def _collect(self) -> None:
        done, _ = wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED)
        for future in done:
            with self._lock:
                del self._running[future]
            future.result()
