"""Cells that are measured in place, without a server: one module per kind of engine that serves nothing."""

from harness.offline.base import Measurement, OfflineError
from harness.offline.measure import measure

__all__ = ["Measurement", "OfflineError", "measure"]
