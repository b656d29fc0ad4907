"""The client's measures of a point, from its requests' timestamps alone.

Definitions (kept for good; stored requests can be measured again):
duration: first dispatch to the end of the last response, failed ones included.
TTFT: scheduled to first content token, so waiting inside the client counts. E2E: scheduled to last
content token. TPOT of a request: (last - first content token) / (tokens - 1), for those whose tokens
came in more than one chunk. ITL: pooled over requests; a chunk of m tokens that comes `gap` after the
one before contributes m gaps of gap/m. Latencies and token totals cover completed requests, failures
are counted beside them. Standard deviations are of the population, as in vLLM's and SGLang's clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.records import LATENCIES, RequestRecord

Measures = dict[str, float | int | None]


def measure(requests: Sequence[RequestRecord]) -> Measures:
    """Every `records.CLIENT_MEASURES` but `lag_p99_ms`; None where a measure is undefined.

    Statistics are undefined without a sample, `std` with fewer than two; rates are undefined when
    nothing completed. Units are in the names; throughputs are per second.
    """
    completed = [request for request in requests if request.error is None]
    duration_s = _duration_s(requests)
    total_input = sum(_input_tokens(request) for request in completed)
    total_output = sum(sum(request.chunk_tokens) for request in completed)
    rates_over = duration_s if completed else None
    measures: Measures = {
        "duration_s": duration_s,
        "completed": len(completed),
        "failed": len(requests) - len(completed),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": _rate(len(completed), rates_over),
        "output_throughput": _rate(total_output, rates_over),
        "total_token_throughput": _rate(total_input + total_output, rates_over),
    }
    for latency, sample_s in zip(LATENCIES, _samples_s(completed), strict=True):
        measures |= _statistics(latency, sample_s)
    return measures


def _duration_s(requests: Sequence[RequestRecord]) -> float | None:
    ends = [request.end_s for request in requests if request.end_s is not None]
    return max(ends) - min(request.scheduled_s for request in requests) if ends else None


def _input_tokens(request: RequestRecord) -> int:
    return request.input_len if request.prompt_tokens is None else request.prompt_tokens


def _rate(amount: int, duration_s: float | None) -> float | None:
    return amount / duration_s if duration_s else None


def _samples_s(completed: Sequence[RequestRecord]) -> tuple[np.ndarray, ...]:
    """TTFT, TPOT, ITL, E2E in the order of `records.LATENCIES`, seconds."""
    streamed = [request for request in completed if request.chunk_times_s]
    ttft = [request.chunk_times_s[0] - request.scheduled_s for request in streamed]
    e2el = [request.chunk_times_s[-1] - request.scheduled_s for request in streamed]
    tpot = [
        (request.chunk_times_s[-1] - request.chunk_times_s[0]) / (sum(request.chunk_tokens) - 1)
        for request in streamed
        if len(request.chunk_times_s) > 1
    ]
    gaps = [token_gaps_s(request) for request in streamed]
    itl = np.concatenate(gaps) if gaps else np.empty(0)
    return np.array(ttft), np.array(tpot), itl, np.array(e2el)


def token_gaps_s(request: RequestRecord) -> np.ndarray:
    """Float64 [tokens after the first chunk]: each token's share of the gap its chunk ended."""
    tokens = np.array(request.chunk_tokens[1:], dtype=np.int64)
    return np.repeat(np.diff(request.chunk_times_s) / tokens, tokens)


def _statistics(latency: str, sample_s: np.ndarray) -> Measures:
    """The statistics of `records.STATISTICS` for one latency, milliseconds."""
    names = ("median", "p90", "p95", "p99")
    if sample_s.size == 0:
        return {f"{name}_{latency}_ms": None for name in ("mean", "std", *names)}
    sample_ms = sample_s * 1e3
    percentiles = np.percentile(sample_ms, (50, 90, 95, 99))
    statistics: Measures = {
        f"{name}_{latency}_ms": float(value) for name, value in zip(names, percentiles, strict=True)
    }
    statistics[f"mean_{latency}_ms"] = float(sample_ms.mean())
    statistics[f"std_{latency}_ms"] = float(sample_ms.std()) if sample_ms.size > 1 else None
    return statistics
