"""How well this process kept up while it measured: the lateness of its event loop and its CPU time."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Of one process over one measured part. Lateness is None when the loop never woke."""

    lag_p99_ms: float | None
    lag_mean_ms: float | None
    lag_max_ms: float | None
    cpu_s: float  # of all its threads
    duration_s: float


class HealthMonitor:
    """Measures while its body runs, as an async context manager; then `health` says what it saw.

    It should wake every `interval_s`. Every wake-up counts with its own lateness, those missed
    during a stall included: a loop that stands still for a second is late a hundred times, not once.
    """

    def __init__(self, interval_s: float = 0.05) -> None:
        self._interval_s = interval_s
        self._lags_s = array("d")
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._began = self._ended = (0.0, 0.0)

    async def __aenter__(self) -> Self:
        self._began = _clocks()
        self._due_s = time.perf_counter() + self._interval_s
        self._set()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._timer is not None
        self._ended = _clocks()
        self._timer.cancel()

    @property
    def health(self) -> Health:
        """Valid once the body has ended."""
        lags_ms = np.asarray(self._lags_s) * 1e3
        seen = lags_ms.size > 0
        return Health(
            lag_p99_ms=float(np.quantile(lags_ms, 0.99)) if seen else None,
            lag_mean_ms=float(lags_ms.mean()) if seen else None,
            lag_max_ms=float(lags_ms.max()) if seen else None,
            cpu_s=self._ended[1] - self._began[1],
            duration_s=self._ended[0] - self._began[0],
        )

    def _set(self) -> None:
        wait_s = max(self._due_s - time.perf_counter(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._note)  # a task costs four times as much

    def _note(self) -> None:
        late_s = time.perf_counter() - self._due_s
        missed = max(math.ceil(late_s / self._interval_s), 1)
        self._lags_s.extend([max(late_s - i * self._interval_s, 0.0) for i in range(missed)])
        self._due_s += missed * self._interval_s
        self._set()


def _clocks() -> tuple[float, float]:
    """Now, and this process's CPU seconds."""
    return time.perf_counter(), time.process_time()
