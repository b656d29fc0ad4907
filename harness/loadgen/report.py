"""A point's result for people, and as the line of JSON that scripts made for bench_serving read.

Every measure is there by its own name (`records.CLIENT_MEASURES`), and again by the names that SGLang's and vLLM's
clients give it where those differ.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.loadgen.metrics import Measures
from harness.loadgen.point import PointLoad, PointResult
from harness.loadgen.samples import token_gaps_s
from harness.records import PERCENTILES, STATISTICS, RequestRecord, Status

_ALIASES = {  # as they call it -> as we do
    "duration": "duration_s",
    "total_throughput": "total_token_throughput",
    "concurrency": "mean_concurrency",
    "max_concurrent_requests": "peak_concurrency",
    **{f"{name}_e2e_latency_ms": f"{name}_e2el_ms" for name in STATISTICS},
}


def result_line(args: argparse.Namespace, load: PointLoad, result: PointResult) -> dict[str, Any]:
    """One flat object: what was asked, what came of it, `status` and `reason`; with `--output-details` each request."""
    m = result.measures
    tokens_in, duration_s = m["total_input_tokens"], m["duration_s"]
    line: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "tag": args.tag,
        "backend": args.backend or args.endpoint,
        "endpoint": args.endpoint,
        "base_url": load.base_url,
        "model_id": load.model,
        "dataset_name": args.dataset_name,
        "num_prompts": args.num_prompts,
        "request_rate": "trace" if args.use_trace_timestamps else _finite(args.request_rate),
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        "random_input_len": args.random_input_len,
        "random_output_len": args.random_output_len,
        "random_range_ratio": args.random_range_ratio,
        "sharegpt_output_len": args.sharegpt_output_len,
        "seed": args.seed,
        "status": result.status.value,
        "reason": result.reason,
        "count_source": result.count_source,
        "reader": result.reader,
        **m,
        **{theirs: m[ours] for theirs, ours in _ALIASES.items()},
        "input_throughput": tokens_in / duration_s if tokens_in and duration_s else None,
        "max_output_tokens_per_s": _busiest_second(result.requests),
    }
    return line | _details(result.requests) if args.output_details else line


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add one line to a JSONL file. Raises OSError where it cannot be written."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")


def summary(load: PointLoad, result: PointResult) -> Iterator[str]:
    """Lines for a terminal."""
    m = result.measures
    status = result.status.value if result.status is Status.OK else f"{result.status.value.upper()}: {result.reason}"
    yield f"status                {status}"
    if not result.requests:
        return
    yield f"requests              {m['completed']} completed, {m['failed']} failed, in {_number(m['duration_s'])} s"
    yield f"token counts          {result.count_source or 'none'}"
    yield (
        f"tokens                {m['total_input_tokens']:,} in, {m['total_output_tokens']:,} out: "
        f"{_number(m['output_throughput'])} out/s, {_number(m['total_token_throughput'])} in all/s"
    )
    sent = _number(m["offered_request_rate"])
    yield f"requests/s            {_number(m['request_throughput'])} completed, {sent} sent"
    yield f"in flight             {_number(m['mean_concurrency'])} mean, {m['peak_concurrency'] or 0} at most"
    if m["goodput"] is not None:
        yield f"goodput               {m['goodput']:.1%} of all sent, {_number(m['request_goodput'])} requests/s"
    yield from _latencies(m)
    steady, over_s = _number(m["steady_output_throughput"]), _number(m["steady_duration_s"])
    yield f"steady state          {steady} tokens/s over {over_s} s"
    late = f"{m['late_dispatches']} later than {load.load.late_after_ms:g} ms"
    yield f"dispatches            {_number(m['p99_dispatch_lag_ms'])} ms late at p99, {late}"
    cpu = f"{_number(m['cpu_us_per_token'])} us CPU a token, {_number(m['cpu_share'])} of a core"
    yield f"this client           {_number(m['lag_p99_ms'])} ms late at p99, {cpu}, reader: {result.reader or '-'}"


def _latencies(m: Measures) -> Iterator[str]:
    names = ("mean", *PERCENTILES)
    yield f"{'ms':<18}" + "".join(f"{name:>12}" for name in names) + f"{'95% interval of the mean':>28}"
    for latency, words in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "end to end")):
        low, high = m[f"mean_{latency}_ms_ci_low"], m[f"mean_{latency}_ms_ci_high"]
        bounds = "-" if low is None else f"{_number(low)} to {_number(high)}"
        yield f"{words:<18}" + "".join(f"{_number(m[f'{s}_{latency}_ms']):>12}" for s in names) + f"{bounds:>28}"


def _details(requests: Sequence[RequestRecord]) -> dict[str, Any]:
    """Lists with one entry a request, in the order they were due; times in seconds."""
    ordered = sorted(requests, key=lambda request: (request.scheduled_s, request.request_id))
    return {
        "input_lens": [r.input_len if r.prompt_tokens is None else r.prompt_tokens for r in ordered],
        "output_lens": [sum(r.chunk_tokens) for r in ordered],
        "start_times": [r.scheduled_s for r in ordered],
        "ttfts": [r.chunk_times_s[0] - r.scheduled_s if r.chunk_times_s else None for r in ordered],
        "itls": [token_gaps_s(r).tolist() for r in ordered],
        "generated_texts": [r.output_text for r in ordered],
        "errors": [f"{r.error}: {r.error_detail}" if r.error else "" for r in ordered],
    }


def _busiest_second(requests: Sequence[RequestRecord]) -> int | None:
    """Most tokens that came in one second of the run, seconds counted from its start."""
    came = [request for request in requests if request.error is None and request.chunk_times_s]
    if not came:
        return None
    seconds = np.concatenate([np.asarray(request.chunk_times_s) for request in came]).astype(np.int64)
    tokens = np.concatenate([np.asarray(request.chunk_tokens) for request in came])
    return int(np.bincount(seconds, weights=tokens).max())


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"  # as they write it; JSON has no infinity


def _number(value: float | int | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
