"""How far a point is, for a display: written by the event loop, readable from any thread."""

from __future__ import annotations

import time


class Progress:
    """Plain numbers, each written by one place, so that a reader needs no lock.

    `events` counts streamed events, about one per token: good enough to show a rate while it runs,
    never used for a result.
    """

    __slots__ = ("_ended", "_started", "done", "events", "failed", "running", "total")

    def __init__(self, total: int) -> None:
        self.total = total  # requests of the measured part
        self.done = 0  # requests ended, failed ones included
        self.failed = 0  # of those, failed; known a moment later, when the response is parsed
        self.running = 0
        self.events = 0
        self._started: float | None = None
        self._ended: float | None = None

    def start(self) -> None:
        """The measured part begins; what the warm-up counted is forgotten."""
        self.done = self.failed = self.events = 0
        self._started = time.perf_counter()

    def stop(self) -> None:
        """The measured part is over."""
        self._ended = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds of the measured part so far; 0 during warm-up."""
        if self._started is None:
            return 0.0
        return (self._ended or time.perf_counter()) - self._started
