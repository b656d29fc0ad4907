"""One point as plain data: what is asked of a load generator, what each of its processes saw, and the result of all.

Several processes drive one point together: `split` gives each its share of the workers, or of the arrivals, and
`conclude` merges what they saw by timestamps. That takes some milliseconds of statistics, so whoever drives one point
after another keeps what was `Seen` and concludes it beside the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.loadgen.bodies import Endpoint
from harness.loadgen.health import Health
from harness.loadgen.metrics import Measures, Rules, measure
from harness.loadgen.verdict import judge_point
from harness.records import RequestRecord, Status
from harness.schema import LoadConfig
from workloads import Prompt


@dataclass(kw_only=True, slots=True)
class PointLoad:
    """Everything one point needs, as plain data that can be sent to another process."""

    base_url: str  # http://host:port
    model: str  # the name the server knows it by
    prompts: list[Prompt]  # the measured requests, in order: N is their number
    warmup: list[Prompt] = field(default_factory=list)  # other prompts, sent and drained before
    concurrency: int  # C: workers of the closed loop, most requests in flight of the open one
    load: LoadConfig  # limits, stagger and thresholds are read from it
    due_s: list[float] | None = None  # open loop: when each prompt is due, seconds after the start; None: closed loop
    endpoint: Endpoint = "completions"
    temperature: float = 0.0
    ignore_eos: bool = True
    extra_body: dict[str, Any] = field(default_factory=dict)  # added to every request's JSON
    api_key: str | None = field(default=None, repr=False)
    devices: int = 1  # the server computes on
    # of a share of a point (see `split`)
    numbers: list[int] | None = None  # of the prompts among all of the point's; None: 0, 1, ...
    first_worker: int = 0  # the number of this share's first worker

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url is {self.base_url!r}; it must start with http:// or https://")
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; it must be at least 1")
        if not self.prompts:
            raise ValueError("a point needs at least one request; raise load.num_requests")
        if self.due_s is not None and len(self.due_s) != len(self.prompts):
            raise ValueError(f"{len(self.due_s)} due times were given for {len(self.prompts)} prompts")

    @property
    def rules(self) -> Rules:
        """What its timestamps are measured by."""
        return Rules(
            concurrency=self.concurrency if self.due_s is None else None,
            slo_ttft_ms=self.load.slo_ttft_ms,
            slo_tpot_ms=self.load.slo_tpot_ms,
            slo_e2el_ms=self.load.slo_e2el_ms,
            devices=self.devices,
            late_after_ms=self.load.late_after_ms,
        )


@dataclass(kw_only=True, slots=True)
class Driven:
    """What one process saw. `requests` are in the order they ended; times are seconds after its start."""

    requests: list[RequestRecord]
    held_back: int  # requests whose token times the server held back
    health: Health | None  # None: the warm-up failed, and nothing was measured
    started_at_s: float  # its time.time() at the start
    gave_up: tuple[Status, str] | None = None  # why nothing was measured
    stopped: bool = False  # it was told to end early
    reader: str | None = None  # what read the sockets; see `native`


@dataclass(kw_only=True, slots=True)
class PointResult:
    """What one point gave."""

    requests: list[RequestRecord]  # in the order they ended; empty when the warm-up failed
    measures: Measures  # every records.CLIENT_MEASURES
    status: Status
    reason: str | None  # why it is not ok
    count_source: str | None  # where token counts come from; "mixed" when requests differ
    reader: str | None = None  # what read the sockets: "native", or "python" and why


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What all processes of a point saw, before anything is computed of it."""

    load: PointLoad
    driven: list[Driven]
    clock_ahead_s: list[float]  # of each process's clock, against one common clock
    clock_uncertainty_ms: float | None = None

    @property
    def failure(self) -> str | None:
        """Why no request completed; None where one did. All there is to know of a warm-up."""
        gave_up = next((part.gave_up for part in self.driven if part.gave_up), None)
        requests = [request for part in self.driven for request in part.requests]
        status, reason = gave_up or judge_point(requests, held_back=0, measures={}, limits=self.load.load)
        return reason if status is Status.FAILED else None

    def result(self) -> PointResult:
        return conclude(
            self.load,
            self.driven,
            clock_ahead_s=self.clock_ahead_s,
            clock_uncertainty_ms=self.clock_uncertainty_ms,
        )


def split(load: PointLoad, parts: int) -> list[PointLoad]:
    """The shares of `parts` processes, at most as many as requests may be in flight.

    Prompts and their due times are dealt in turn. A closed loop's workers are divided as evenly as they go, and
    each share takes its own prompts only: one that is done early does not take another's. The warm-up is the first's.
    """
    parts = max(1, min(parts, load.concurrency, len(load.prompts)))
    shares: list[PointLoad] = []
    for part in range(parts):
        mine = range(part, len(load.prompts), parts)
        shares.append(
            replace(
                load,
                prompts=[load.prompts[i] for i in mine],
                warmup=load.warmup if part == 0 else [],
                due_s=None if load.due_s is None else [load.due_s[i] for i in mine],
                concurrency=load.concurrency // parts + (part < load.concurrency % parts),
                numbers=list(mine),
                first_worker=sum(share.concurrency for share in shares) if load.due_s is None else part,
            )
        )
    return shares


def conclude(
    load: PointLoad,
    driven: Sequence[Driven],
    *,
    clock_ahead_s: Sequence[float] | None = None,
    clock_uncertainty_ms: float | None = None,
) -> PointResult:
    """One result of what the processes of a point saw.

    clock_ahead_s: by how much each process's clock is ahead of one common clock; their timestamps are shifted
    accordingly. clock_uncertainty_ms: how far off that may be, for the row.
    """
    given_up = next((part.gave_up for part in driven if part.gave_up), None)
    if given_up:
        nothing = measure([], load.rules) | _process_measures([], [], None)
        return PointResult(requests=[], measures=nothing, status=given_up[0], reason=given_up[1], count_source=None)
    requests = _merged(driven, clock_ahead_s or [0.0] * len(driven))
    measures = measure(requests, load.rules)
    healths = [part.health for part in driven if part.health]
    measures |= _process_measures(healths, requests, measures["mean_ttft_ms"])
    measures["clock_uncertainty_ms"] = clock_uncertainty_ms
    held_back = sum(part.held_back for part in driven)
    status, reason = judge_point(requests, held_back=held_back, measures=measures, limits=load.load)
    if any(part.stopped for part in driven):
        cut = f"interrupted when {len(requests)} of {len(load.prompts)} requests had been sent"
        status = Status.INVALID if status is Status.OK else status
        reason = f"{cut}; {reason}" if reason else cut
    sources = sorted({request.count_source for request in requests if request.count_source})
    return PointResult(
        requests=requests,
        measures=measures,
        status=status,
        reason=reason,
        count_source="mixed" if len(sources) > 1 else next(iter(sources), None),
        reader=", ".join(sorted({part.reader for part in driven if part.reader})) or None,
    )


def _merged(driven: Sequence[Driven], clock_ahead_s: Sequence[float]) -> list[RequestRecord]:
    """All requests, times after the first process's start on the common clock, in the order they ended."""
    if len(driven) == 1:
        return driven[0].requests
    starts = [part.started_at_s - ahead for part, ahead in zip(driven, clock_ahead_s, strict=True)]
    zero = min(starts)
    merged = [_shifted(r, start - zero) for part, start in zip(driven, starts, strict=True) for r in part.requests]
    return sorted(merged, key=lambda request: request.end_s or 0.0)


def _shifted(request: RequestRecord, by_s: float) -> RequestRecord:
    return replace(
        request,
        scheduled_s=request.scheduled_s + by_s,
        sent_s=request.sent_s + by_s,
        chunk_times_s=[time_s + by_s for time_s in request.chunk_times_s],
        end_s=None if request.end_s is None else request.end_s + by_s,
    )


def _process_measures(
    healths: Sequence[Health], requests: Sequence[RequestRecord], mean_ttft_ms: float | int | None
) -> Measures:
    """`records.PROCESS_MEASURES`, of the worst process."""

    def worst(values: list[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    tokens = sum(sum(request.chunk_tokens) for request in requests)
    lag_mean_ms = worst([health.lag_mean_ms for health in healths])
    return {
        "lag_p99_ms": worst([health.lag_p99_ms for health in healths]),
        "lag_mean_ms": lag_mean_ms,
        "lag_max_ms": worst([health.lag_max_ms for health in healths]),
        "lag_share": lag_mean_ms / mean_ttft_ms if lag_mean_ms is not None and mean_ttft_ms else None,
        "cpu_share": worst([health.cpu_s / health.duration_s for health in healths]),
        "cpu_us_per_token": sum(health.cpu_s for health in healths) * 1e6 / tokens if tokens else None,
        "load_processes": len(healths),
        "clock_uncertainty_ms": None,
    }
