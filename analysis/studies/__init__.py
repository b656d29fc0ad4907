"""Experiments that serve nothing: how the rows of each kind of engine are drawn and tabled.

A study takes the rows of one engine and gives figures, tables and the words they use. Serving experiments have
their own path (`analysis.frame`, `figures`, `tables`).
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from analysis.studies import kernels, quality, replay
from analysis.studies.base import Plot, Study

STUDIES: dict[str, Callable[[pd.DataFrame], Study]] = {  # by ResultRow.engine
    "kernels": kernels.study,
    "replay": replay.study,
    "quality": quality.study,
}

__all__ = ["STUDIES", "Plot", "Study"]
