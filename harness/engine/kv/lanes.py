"""Lanes: record copies beside the computation, and how one waits for them (HiSparse, sections 3.3 and 3.5).

`submit` hands over a copy, `wait` returns when its bytes have arrived; between the two, a copy may happen at any
moment and in any order. The lanes of a CPU are a worker thread, those of a GPU streams (`cuda_lanes`).
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import torch

from harness.engine.kv.link import Link


class Lane(Enum):
    """What a copy is for."""

    demand = "demand"  # host to device: a layer waits for its misses; never ahead of `wait`
    prefetch = "prefetch"  # host to device: misses of a layer that comes later
    load = "load"  # host to device: prefill's earlier records, and what a cache starts with
    staging = "staging"  # device to host: prefill's records
    write_through = "write_through"  # device to host: each step's new records

    @property
    def to_device(self) -> bool:
        return self in (Lane.demand, Lane.prefetch, Lane.load)


class Transfer:
    """One submitted copy. Whoever comes first makes it, the lanes' worker or who needs it."""

    __slots__ = ("_claim", "_copy", "_made", "_problem", "arrival")

    def __init__(self, copy: Callable[[], object], arrival: float):
        self.arrival = arrival  # on the link, `time.perf_counter`'s clock
        self._copy: Callable[[], object] | None = copy
        self._claim = threading.Lock()
        self._made = threading.Lock()  # held until the copy is made
        self._made.acquire()
        self._problem: BaseException | None = None

    def make(self) -> None:
        """Make the copy unless somebody has begun to."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            assert self._copy is not None
            self._copy()
        except BaseException as problem:  # raised again where somebody waits for the copy
            self._problem = problem
        finally:
            self._copy = None  # frees the tensors it holds
            self._made.release()

    def settle(self) -> None:
        """Return when the copy is made, whatever the link says. Raises what the copy raised."""
        self.make()
        with self._made:
            if self._problem is not None:
                raise self._problem

    @property
    def is_made(self) -> bool:
        return not self._made.locked()


class AnyTransfer(Protocol):
    """A submitted copy, of whichever lanes."""

    def settle(self) -> None:
        """Have the copy made, or what is computed from now on come after it, whatever the link says."""

    @property
    def is_made(self) -> bool: ...


class AnyLanes(Protocol):
    """What KV sides need of lanes; a transfer is given back to those that it came from."""

    def submit(self, lane: Lane, copy: Callable[[], object], num_bytes: int) -> AnyTransfer: ...

    def wait(self, transfer: Any) -> None: ...

    def arrived(self, transfer: Any) -> bool: ...


class Lanes:
    """The lanes of a CPU platform, over one link. `submit`, `wait` and `arrived` are called from one thread."""

    def __init__(self, link: Link):
        self._link = link
        self._queue: queue.SimpleQueue[Transfer | None] | None = None

    def submit(self, lane: Lane, copy: Callable[[], object], num_bytes: int) -> Transfer:
        """Queue a copy. What it reads and writes must stay as it is until the transfer was waited for or settled."""
        transfer = Transfer(copy, self._link.reserve(num_bytes))
        if lane not in (Lane.demand, Lane.load):  # who submits those waits for them at once: no other thread
            self._hand_over(transfer)
        return transfer

    def wait(self, transfer: Transfer) -> None:
        """Return when the bytes have arrived. Raises what the copy raised."""
        transfer.settle()
        self._link.sleep_until(transfer.arrival)

    def arrived(self, transfer: Transfer) -> bool:
        """Whether `wait` would return at once."""
        return transfer.is_made and transfer.arrival <= time.perf_counter()

    def _hand_over(self, transfer: Transfer) -> None:
        if self._queue is None:
            self._queue = queue.SimpleQueue()
            threading.Thread(target=_work, args=(self._queue,), name="lanes", daemon=True).start()
            weakref.finalize(self, self._queue.put, None)
        self._queue.put(transfer)


def _work(transfers: queue.SimpleQueue[Transfer | None]) -> None:
    """The worker; it knows the queue alone, so that an engine no longer used can be freed with its pools."""
    with torch.inference_mode():
        while (transfer := transfers.get()) is not None:
            transfer.make()
            del transfer
