"""A fixed piece of work, timed: how fast the machine is right now."""

from __future__ import annotations

import statistics
import time

import torch


def reference_s(rounds: int = 20) -> float:
    """Median seconds of one round: small matrix products with Python between them, as an engine's step has."""
    left, right = torch.ones(16, 128), torch.ones(128, 384)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(400):
            (left @ right).relu_().sum()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
