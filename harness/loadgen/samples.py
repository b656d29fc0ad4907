"""One observation a request (TTFT, TPOT, E2E) or a token (ITL), from timestamps: what statistics are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.records import RequestRecord


class Sample(NamedTuple):
    """Observations of one latency: float64 [n], seconds, and when each was made."""

    values_s: np.ndarray
    at_s: np.ndarray

    def within(self, start_s: float, end_s: float) -> Sample:
        """Those made in [start_s, end_s]."""
        inside = (self.at_s >= start_s) & (self.at_s <= end_s)
        return Sample(self.values_s[inside], self.at_s[inside])


class Samples(NamedTuple):
    """In the order of `records.LATENCIES`. TTFT is observed at the first token, the others at the last they cover."""

    ttft: Sample
    tpot: Sample
    itl: Sample
    e2el: Sample


def observe(completed: Sequence[RequestRecord]) -> Samples:
    """All observations of completed requests. Requests whose tokens came in one chunk have no TPOT and no ITL."""
    streamed = [request for request in completed if request.chunk_times_s]
    several = [request for request in streamed if len(request.chunk_times_s) > 1]
    first = np.array([request.chunk_times_s[0] for request in streamed])
    last = np.array([request.chunk_times_s[-1] for request in streamed])
    scheduled = np.array([request.scheduled_s for request in streamed])
    tpot = np.array([_time_per_token_s(request) for request in several])
    gaps = [token_gaps_s(request) for request in several]
    arrived = [np.repeat(request.chunk_times_s[1:], request.chunk_tokens[1:]) for request in several]
    return Samples(
        ttft=Sample(first - scheduled, first),
        tpot=Sample(tpot, np.array([request.chunk_times_s[-1] for request in several])),
        itl=Sample(_joined(gaps), _joined(arrived)),
        e2el=Sample(last - scheduled, last),
    )


def token_gaps_s(request: RequestRecord) -> np.ndarray:
    """Float64 [tokens after the first chunk]: each token's share of the gap its chunk ended."""
    tokens = np.array(request.chunk_tokens[1:], dtype=np.int64)
    return np.repeat(np.diff(request.chunk_times_s) / tokens, tokens)


def _time_per_token_s(request: RequestRecord) -> float:
    return (request.chunk_times_s[-1] - request.chunk_times_s[0]) / (sum(request.chunk_tokens) - 1)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0)
