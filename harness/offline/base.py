"""What measurements in place have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

Measures = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one point gave: its measures, and files for its folder by name."""

    measures: Measures
    files: dict[str, bytes] = field(default_factory=dict)


class OfflineError(RuntimeError):
    """A measurement that could not be made; the message is one line.

    may_pass: whether its process was lost, so that the same measurement may well succeed in another.
    """

    def __init__(self, message: str, *, may_pass: bool = False):
        super().__init__(message)
        self.may_pass = may_pass
