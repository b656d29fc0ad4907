"""One observation a request (TTFT, TPOT, E2E) or a token (ITL), from timestamps: what statistics are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.loadgen.quantiles import repeated
from harness.records import RequestRecord

_SPARSE = 4  # observations a value from which on sorting the values is quicker than partitioning all observations


class Sample(NamedTuple):
    """Observations of one latency: float64 [n], seconds, when each was made, and how often it was made then."""

    values_s: np.ndarray
    at_s: np.ndarray
    counts: np.ndarray | None = None  # int64 [n]; None: once each

    @property
    def size(self) -> int:
        """Observations in all."""
        return self.values_s.size if self.counts is None else int(self.counts.sum())

    def within(self, start_s: float, end_s: float) -> Sample:
        """Those made in [start_s, end_s]."""
        inside = (self.at_s >= start_s) & (self.at_s <= end_s)
        return Sample(self.values_s[inside], self.at_s[inside], None if self.counts is None else self.counts[inside])

    def each_ms(self) -> np.ndarray:
        """Float64 [size], milliseconds."""
        values_ms = self.values_s * 1e3
        return values_ms if self.counts is None else np.repeat(values_ms, self.counts)

    def quantiles_ms(self, each_ms: np.ndarray, shares: Sequence[float]) -> np.ndarray:
        """Float64 [shares] of what `each_ms` gave."""
        if self.counts is None or self.values_s.size * _SPARSE > each_ms.size:
            return np.quantile(each_ms, shares)
        return repeated(self.values_s * 1e3, self.counts, shares)


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
    gaps = [_chunk_gaps_s(request) for request in several]
    arrived = [np.array(request.chunk_times_s[1:]) for request in several]
    counts = _joined([np.array(request.chunk_tokens[1:]) for request in several]).astype(np.int64)
    return Samples(
        ttft=Sample(first - scheduled, first),
        tpot=Sample(tpot, np.array([request.chunk_times_s[-1] for request in several])),
        itl=Sample(_joined(gaps), _joined(arrived), None if (counts == 1).all() else counts),
        e2el=Sample(last - scheduled, last),
    )


def token_gaps_s(request: RequestRecord) -> np.ndarray:
    """Float64 [tokens after the first chunk]: each token's share of the gap its chunk ended."""
    return np.repeat(_chunk_gaps_s(request), request.chunk_tokens[1:])


def _chunk_gaps_s(request: RequestRecord) -> np.ndarray:
    """Float64 [chunks after the first]: what each of its tokens has of the gap before it."""
    times = np.array(request.chunk_times_s)
    return (times[1:] - times[:-1]) / np.array(request.chunk_tokens[1:], dtype=np.int64)


def _time_per_token_s(request: RequestRecord) -> float:
    return (request.chunk_times_s[-1] - request.chunk_times_s[0]) / (sum(request.chunk_tokens) - 1)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0)
