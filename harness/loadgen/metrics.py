"""The client's measures of a point, from its requests' timestamps alone.

Definitions (kept for good; stored requests can be measured again: `python -m analysis recompute`):
duration: first dispatch to the end of the last response, failed ones included.
TTFT: scheduled to first content token, so waiting inside the client counts. E2E: scheduled to last
content token. TPOT of a request: (last - first content token) / (tokens - 1), for those whose tokens
came in more than one chunk. ITL: pooled over requests; a chunk of m tokens that comes `gap` after the
one before contributes m gaps of gap/m. Latencies and token totals cover completed requests, failures
are counted beside them; `*_with_failures` counts a failed request as one that took for ever. Standard
deviations are of the population, as in vLLM's and SGLang's clients. Steady state: see `window`; a
latency belongs to the window if it was observed in it. Confidence intervals: see `bootstrap`.
Goodput: requests that met every SLO / requests sent, failed ones included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.loadgen.bootstrap import Interval, intervals, ratio_interval
from harness.loadgen.samples import Sample, Samples, observe
from harness.loadgen.window import in_flight, steady_window
from harness.records import INTERVALS, LATENCIES, PERCENTILES, REQUEST_LATENCIES, STATISTICS, RequestRecord

Measures = dict[str, float | int | None]

_SHARES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What timestamps do not say: how the load was meant, what counts as good, what it ran on."""

    concurrency: int | None = None  # workers of the closed loop; None: open loop
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    slo_e2el_ms: float | None = None
    devices: int = 1  # the server computes on
    late_after_ms: float = 10.0  # a dispatch later than this is counted as late

    @property
    def has_slo(self) -> bool:
        return any(limit is not None for limit in (self.slo_ttft_ms, self.slo_tpot_ms, self.slo_e2el_ms))


def measure(requests: Sequence[RequestRecord], rules: Rules | None = None) -> Measures:
    """Every `records.TIMESTAMP_MEASURES`; None where a measure is undefined.

    Statistics are undefined without a sample, `std` with fewer than two; rates are undefined when
    nothing completed. Units are in the names; throughputs are per second.
    """
    rules = rules or Rules()
    completed = [request for request in requests if request.error is None]
    samples = observe(completed)
    duration_s = _duration_s(requests)
    measures = _totals(requests, completed, duration_s)
    for latency, sample in zip(LATENCIES, samples, strict=True):
        measures |= _statistics(latency, sample)
    failed = len(requests) - len(completed)
    for latency in REQUEST_LATENCIES:
        measures |= _with_failures(latency, getattr(samples, latency).values_s, failed)
    measures |= _intervals(completed, samples)
    measures |= _steady(completed, samples, steady_window(requests, rules.concurrency))
    measures |= _goodput(requests, duration_s if completed else None, rules)
    mean_tpot_ms, output = measures["mean_tpot_ms"], measures["output_throughput"]
    measures["output_throughput_per_user"] = 1e3 / mean_tpot_ms if mean_tpot_ms else None
    measures["output_throughput_per_device"] = None if output is None else output / rules.devices
    return measures | _concurrency(requests, duration_s) | _dispatches(requests, rules.late_after_ms)


def _totals(
    requests: Sequence[RequestRecord], completed: Sequence[RequestRecord], duration_s: float | None
) -> Measures:
    total_input = sum(_input_tokens(request) for request in completed)
    total_output = sum(sum(request.chunk_tokens) for request in completed)
    rates_over = duration_s if completed else None
    return {
        "duration_s": duration_s,
        "completed": len(completed),
        "failed": len(requests) - len(completed),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": _rate(len(completed), rates_over),
        "output_throughput": _rate(total_output, rates_over),
        "total_token_throughput": _rate(total_input + total_output, rates_over),
    }


def _duration_s(requests: Sequence[RequestRecord]) -> float | None:
    ends = [request.end_s for request in requests if request.end_s is not None]
    return max(ends) - min(request.scheduled_s for request in requests) if ends else None


def _input_tokens(request: RequestRecord) -> int:
    """By the server's count; the workload's where the server gives none."""
    return (request.input_len or 0) if request.prompt_tokens is None else request.prompt_tokens


def _rate(amount: int, duration_s: float | None) -> float | None:
    return amount / duration_s if duration_s else None


def _statistics(latency: str, sample: Sample | None, prefix: str = "") -> Measures:
    """The statistics of `records.STATISTICS` for one latency, milliseconds."""
    if sample is None or sample.size == 0:
        return {f"{prefix}{name}_{latency}_ms": None for name in STATISTICS}
    sample_ms = sample.each_ms()
    percentiles = sample.quantiles_ms(sample_ms, [_SHARES[name] for name in PERCENTILES])
    found: Measures = {
        f"{prefix}{name}_{latency}_ms": float(value) for name, value in zip(PERCENTILES, percentiles, strict=True)
    }
    found[f"{prefix}mean_{latency}_ms"] = float(sample_ms.mean())
    found[f"{prefix}std_{latency}_ms"] = float(sample_ms.std()) if sample_ms.size > 1 else None
    return found


def _with_failures(latency: str, sample_s: np.ndarray, failed: int) -> Measures:
    """Percentiles of the sample and `failed` infinite values beside it; None where one is infinite or undefined."""
    ordered_ms = np.sort(sample_s) * 1e3
    found: Measures = {}
    for name in PERCENTILES:
        rank = _SHARES[name] * (ordered_ms.size + failed - 1)
        below, above = int(np.floor(rank)), int(np.ceil(rank))
        finite = below >= 0 and above < ordered_ms.size
        value = float(np.interp(rank, (below, above), ordered_ms[[below, above]])) if finite else None
        found[f"{name}_{latency}_ms_with_failures"] = value
    return found


def _intervals(completed: Sequence[RequestRecord], samples: Samples) -> Measures:
    """The bounds of `records.INTERVALS`, over requests."""
    bounds: dict[str, Interval] = {}
    for latency in REQUEST_LATENCIES:
        mean, (median, p99) = intervals(getattr(samples, latency).values_s * 1e3, (0.5, 0.99))
        bounds |= {f"mean_{latency}_ms": mean, f"median_{latency}_ms": median, f"p99_{latency}_ms": p99}
    tokens = np.array([sum(request.chunk_tokens[1:]) for request in completed if len(request.chunk_times_s) > 1])
    gaps = np.split(samples.itl.each_ms(), np.cumsum(tokens)[:-1]) if tokens.size else []
    bounds["mean_itl_ms"] = ratio_interval(np.array([own.sum() for own in gaps]), tokens)
    found: Measures = {}
    for name in INTERVALS:
        low, high = bounds[name] or (None, None)
        found |= {f"{name}_ci_low": low, f"{name}_ci_high": high}
    return found


def _steady(completed: Sequence[RequestRecord], samples: Samples, window: tuple[float, float] | None) -> Measures:
    found: Measures = {
        "steady_start_s": None,
        "steady_duration_s": None,
        "steady_requests": None,
        "steady_output_throughput": None,
    }
    inside: Sequence[Sample | None] = [None] * len(LATENCIES)
    if window:
        start_s, end_s = window
        inside = [sample.within(start_s, end_s) for sample in samples]
        found |= {"steady_start_s": start_s, "steady_duration_s": end_s - start_s}
        found["steady_requests"] = samples.e2el.within(start_s, end_s).size
        found["steady_output_throughput"] = _tokens_within(completed, start_s, end_s) / (end_s - start_s)
    for latency, sample in zip(LATENCIES, inside, strict=True):
        found |= _statistics(latency, sample, prefix="steady_")
    return found


def _tokens_within(completed: Sequence[RequestRecord], start_s: float, end_s: float) -> int:
    """Tokens that came in (start_s, end_s]."""
    found = 0
    for request in completed:
        times = np.asarray(request.chunk_times_s)
        found += int(np.asarray(request.chunk_tokens, dtype=np.int64)[(times > start_s) & (times <= end_s)].sum())
    return found


def _goodput(requests: Sequence[RequestRecord], duration_s: float | None, rules: Rules) -> Measures:
    if not rules.has_slo or not requests:
        return {"goodput": None, "request_goodput": None}
    met = sum(_meets(request, rules) for request in requests if request.error is None)
    return {"goodput": met / len(requests), "request_goodput": _rate(met, duration_s)}


def _meets(request: RequestRecord, rules: Rules) -> bool:
    """Whether a completed request met every SLO; one without a TPOT cannot have missed that one."""
    own = observe([request])
    limits = {"ttft": rules.slo_ttft_ms, "tpot": rules.slo_tpot_ms, "e2el": rules.slo_e2el_ms}
    return all(
        limit is None or bool((getattr(own, latency).values_s * 1e3 <= limit).all())
        for latency, limit in limits.items()
    )


def _concurrency(requests: Sequence[RequestRecord], duration_s: float | None) -> Measures:
    spent_s = sum(request.end_s - request.scheduled_s for request in requests if request.end_s is not None)
    counts = in_flight(requests)[1]
    scheduled = [request.scheduled_s for request in requests]
    spread_s = max(scheduled) - min(scheduled) if scheduled else 0.0
    return {
        "mean_concurrency": spent_s / duration_s if duration_s else None,
        "peak_concurrency": int(counts.max()) if counts.size else None,
        "offered_request_rate": (len(requests) - 1) / spread_s if spread_s > 0 else None,
    }


def _dispatches(requests: Sequence[RequestRecord], late_after_ms: float) -> Measures:
    lags_ms = np.array([request.sent_s - request.scheduled_s for request in requests]) * 1e3
    if lags_ms.size == 0:
        return {f"{name}_dispatch_lag_ms": None for name in ("mean", "p99", "max")} | {"late_dispatches": 0}
    return {
        "mean_dispatch_lag_ms": float(lags_ms.mean()),
        "p99_dispatch_lag_ms": float(np.quantile(lags_ms, 0.99)),
        "max_dispatch_lag_ms": float(lags_ms.max()),
        "late_dispatches": int((lags_ms > late_after_ms).sum()),
    }
