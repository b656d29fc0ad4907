"""What a point is worth: ok, invalid or failed, and why in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.records import RequestRecord, Status


def judge_point(
    requests: Sequence[RequestRecord], *, held_back: int, lag_p99_ms: float | None, max_lag_p99_ms: float
) -> tuple[Status, str | None]:
    """Status and reason of a point.

    failed: nothing completed and something broke. invalid: any request failed (a mean over the
    survivors flatters the server), an output had the wrong length, the server counted other prompt
    tokens than were sent, it held text back so that token times are unknown (`held_back` requests),
    or this client ran late.
    """
    if not requests:
        return Status.FAILED, "no request was sent"
    errors = Counter(request.error for request in requests if request.error)
    if errors.total() == len(requests) and set(errors) != {"wrong_length"}:
        return Status.FAILED, f"all {len(requests)} requests failed: {_describe(errors, requests)}"
    reasons = []
    if errors:
        reasons.append(f"{errors.total()} of {len(requests)} requests failed: {_describe(errors, requests)}")
    miscounted = [r for r in requests if r.error is None and r.prompt_tokens not in (None, r.input_len)]
    if miscounted:
        first = miscounted[0]
        reasons.append(
            f"the server counted {first.prompt_tokens} prompt tokens where {first.input_len} were sent "
            f"(in {len(miscounted)} requests)"
        )
    if held_back:
        reasons.append(f"the server held tokens back in {held_back} requests, so their times are unknown")
    if lag_p99_ms is not None and lag_p99_ms > max_lag_p99_ms:
        reasons.append(
            f"the load generator ran {lag_p99_ms:.0f} ms late at p99 (load.max_lag_p99_ms={max_lag_p99_ms:g}); "
            "give it more CPU"
        )
    return (Status.INVALID, "; ".join(reasons)) if reasons else (Status.OK, None)


def _describe(errors: Counter[str], requests: Sequence[RequestRecord]) -> str:
    """`connect x3 (the first one's detail), http_5xx x1 (...)`."""
    details: dict[str, str | None] = {}
    for request in requests:
        if request.error:
            details.setdefault(request.error, request.error_detail)
    return ", ".join(f"{kind} x{count} ({details[kind]})" for kind, count in errors.most_common())
