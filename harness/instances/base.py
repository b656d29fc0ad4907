"""The protocol of a serving instance: something with a URL that a load generator can drive."""

from __future__ import annotations

from typing import Any, Protocol

from harness.records import ServerStats


class InstanceError(RuntimeError):
    """The server did not start, died, or answered what it should not. The message is one line."""


class Instance(Protocol):
    """Runs where its server runs (a Ray actor's process). Every method may raise InstanceError."""

    def start(self) -> str:
        """Bring the server up and return its base URL; nothing is left running when it raises."""

    def check(self) -> None:
        """Raise when the server is no longer there."""

    def flush(self) -> None:
        """Empty caches and reset peaks between points."""

    def stats(self) -> ServerStats:
        """A reading of the server's counters."""

    def read_log(self, offset: int) -> tuple[str, int]:
        """What the server logged from byte `offset` on, and the offset after it; also once it has stopped."""

    def describe(self) -> dict[str, Any]:
        """The node it runs on and the server's own description, for `env.json`."""

    def stop(self) -> None:
        """End the server and everything it started; may be called while another thread is in `start`. Idempotent."""
