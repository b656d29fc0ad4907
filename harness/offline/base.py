"""What measurements in place have in common."""

from __future__ import annotations

Measures = dict[str, float | int | None]


class OfflineError(RuntimeError):
    """A measurement that could not be made; the message is one line."""
