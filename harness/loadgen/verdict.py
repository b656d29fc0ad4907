"""What a point is worth: ok, invalid or failed, and why in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.loadgen.metrics import Measures
from harness.records import RequestRecord, Status
from harness.schema import LoadConfig

SLIGHT_LAG_MS = 2.0  # arrivals are exact to this


def judge_point(
    requests: Sequence[RequestRecord], *, held_back: int, measures: Measures, limits: LoadConfig
) -> tuple[Status, str | None]:
    """Status and reason of a point; `measures` are its `records.CLIENT_MEASURES`.

    failed: nothing completed and something broke. invalid: more requests failed than allowed (a mean over the
    survivors flatters the server), an output had the wrong length, too few completed, the server counted other
    tokens than were sent or came, it held text back so that token times are unknown (`held_back` requests), or
    this client could have bent the numbers: it ran late, or had no CPU time left.
    """
    if not requests:
        return Status.FAILED, "no request was sent"
    errors = Counter(request.error for request in requests if request.error)
    if errors.total() == len(requests) and set(errors) != {"wrong_length"}:
        return Status.FAILED, f"all {len(requests)} requests failed: {_describe(errors, requests)}"
    reasons = [
        *_failures(requests, errors, limits),
        *_miscounts(requests, limits),
        *([f"the server held tokens back in {held_back} requests, so their times are unknown"] if held_back else ()),
        *_client(measures, limits),
    ]
    return (Status.INVALID, "; ".join(reasons)) if reasons else (Status.OK, None)


def _failures(requests: Sequence[RequestRecord], errors: Counter[str], limits: LoadConfig) -> Iterator[str]:
    share = errors.total() / len(requests)
    if share > limits.max_failed_share or errors["wrong_length"]:
        allowed = f" (load.max_failed_share={limits.max_failed_share:g})" if limits.max_failed_share else ""
        yield f"{errors.total()} of {len(requests)} requests failed{allowed}: {_describe(errors, requests)}"
    completed = len(requests) - errors.total()
    if 0 < completed < limits.min_completed:
        yield f"{completed} requests completed, fewer than load.min_completed={limits.min_completed}"


def _miscounts(requests: Sequence[RequestRecord], limits: LoadConfig) -> Iterator[str]:
    """Where the server's `usage` disagrees with what was sent and with what came, request by request."""
    completed = [request for request in requests if request.error is None]
    other = [r for r in completed if r.input_len is not None and r.prompt_tokens not in (None, r.input_len)]
    if other:
        yield (
            f"the server counted {other[0].prompt_tokens} prompt tokens where {other[0].input_len} were sent "
            f"(in {len(other)} requests)"
        )
    counted = [r for r in completed if r.output_tokens is not None]
    came, said = sum(sum(r.chunk_tokens) for r in counted), sum(r.output_tokens or 0 for r in counted)
    if abs(came - said) > limits.max_token_mismatch * came:
        yield f"the server counted {said} output tokens where {came} came"


def _is_slight(lag_share: float, measures: Measures) -> bool:
    """Whether that lateness is within what these measures are good to anyway, however short the TTFT."""
    return lag_share * (measures.get("mean_ttft_ms") or 0) <= SLIGHT_LAG_MS


def _client(measures: Measures, limits: LoadConfig) -> Iterator[str]:
    """Where the load generator itself could have bent the numbers."""
    for name, limit, says in (
        ("lag_p99_ms", limits.max_lag_p99_ms, "the load generator ran {:.0f} ms late at p99"),
        ("lag_share", limits.max_lag_share, "its mean lateness is {:.2f} of the mean TTFT"),
        ("cpu_share", limits.max_cpu_share, "it computed for {:.2f} of the time"),
    ):
        value = measures.get(name)
        if value is not None and value > limit and not (name == "lag_share" and _is_slight(value, measures)):
            yield f"{says.format(value)} (load.max_{name}={limit:g}); give it more CPU or load.processes"


def _describe(errors: Counter[str], requests: Sequence[RequestRecord]) -> str:
    """`connect x3 (the first one's detail), http_5xx x1 (...)`."""
    details: dict[str, str | None] = {}
    for request in requests:
        if request.error:
            details.setdefault(request.error, request.error_detail)
    return ", ".join(f"{kind} x{count} ({details[kind]})" for kind, count in errors.most_common())
