"""A request's time limits, checked by one timer that is set again only when it has rung."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from harness.schema import LoadConfig

_WHAT = {"timeout_first_token": "no token", "timeout_idle": "no event", "timeout_total": "not complete"}


class Deadline:
    """Calls `late` when a request has no more time, after `look` had a last chance to find what came.

    An event that comes in time costs one assignment, to `event_s`. Times are `time.perf_counter()` seconds.
    """

    __slots__ = (
        "_grace_s",
        "_late",
        "_limits",
        "_look",
        "_loop",
        "_timer",
        "_total_at_s",
        "event_s",
        "in_tokens",
        "problem",
    )

    def __init__(
        self, limits: LoadConfig, started_s: float, look: Callable[[], object], late: Callable[[], None]
    ) -> None:
        self._limits, self._look, self._late = limits, look, late
        self._loop = asyncio.get_running_loop()
        self._total_at_s = started_s + limits.total_timeout_s
        self._grace_s: float | None = None
        self.event_s = time.perf_counter()  # the last one's, or where the wait for the first token begins
        self.in_tokens = False  # the first one has come
        self.problem: tuple[str, str] | None = None  # class and detail, once it was late
        self._timer = self._set(self._due()[0])

    def first_token(self) -> None:
        """It is here: from now on events must keep coming."""
        self.in_tokens = True
        self._again()

    def done(self, grace_s: float) -> None:
        """All is here but the end of the response, which has so long."""
        self._grace_s = grace_s
        self._again()

    def _again(self) -> None:
        self._timer.cancel()
        self._timer = self._set(self._due()[0])

    def _due(self) -> tuple[float, str, float]:
        """When it will be late if nothing comes, what it would be then, and the limit in seconds."""
        limits = self._limits
        if self._grace_s is not None:
            limit, kind = self._grace_s, "timeout_idle"
        elif self.in_tokens:
            limit, kind = limits.idle_timeout_s, "timeout_idle"
        else:
            limit, kind = limits.first_token_timeout_s, "timeout_first_token"
        at_s = self.event_s + limit
        if at_s < self._total_at_s:
            return at_s, kind, limit
        return self._total_at_s, "timeout_total", limits.total_timeout_s

    def _set(self, at_s: float) -> asyncio.TimerHandle:
        return self._loop.call_later(max(at_s - time.perf_counter(), 0.0), self._check)

    def _check(self) -> None:
        self._look()
        at_s, kind, limit = self._due()
        if time.perf_counter() < at_s:
            self._timer = self._set(at_s)
            return
        self.problem = (kind, f"{_WHAT[kind]} within {limit:g} s (load.{kind.removeprefix('timeout_')}_timeout_s)")
        self._late()

    def cancel(self) -> None:
        """The request has ended."""
        self._timer.cancel()
