"""The records every part of the harness exchanges: one request, one server reading, one result row.

Nothing here imports anything of ours, torch, ray or pandas, so any layer may use it.
All times are seconds on a monotonic clock; `*_ms` measures are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

SCHEMA_VERSION = 1


class Status(StrEnum):
    """What a result row is worth."""

    OK = "ok"
    INFEASIBLE = "infeasible"  # the cell cannot run at all (a request does not fit)
    FAILED = "failed"  # it was tried and something broke
    INVALID = "invalid"  # it ran, but the numbers must not be used


@dataclass(kw_only=True, slots=True)
class RequestRecord:
    """One request as the client saw it. Times are seconds since the point's first dispatch.

    `chunk_times_s[i]` is when the i-th chunk that carried at least one generated token arrived and
    `chunk_tokens[i]` how many tokens it carried; their sum is `output_tokens` unless the request failed.
    """

    request_id: str
    worker: int  # of the closed loop; the load generator's process in the open one
    prompt_sha: str  # of the prompt's token ids or text: equal prompts have equal values
    input_len: int | None  # tokens in the prompt, as asked of the workload; None: text that was not tokenised
    output_len: int  # tokens asked for
    scheduled_s: float  # when the pacing wanted it sent
    sent_s: float  # when the request was handed to the socket
    chunk_times_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    end_s: float | None = None  # when the response was complete or failed
    prompt_tokens: int | None = None  # the server's count
    output_tokens: int | None = None  # the server's count
    count_source: str | None = None  # where output_tokens comes from: "continuous_usage", "usage"
    finish_reason: str | None = None
    error: str | None = None  # failure class, None when it succeeded
    error_detail: str | None = None
    output_text: str = ""


@dataclass(kw_only=True, slots=True)
class ServerStats:
    """One reading of a server's counters. None: this server does not report it.

    Counters grow for as long as the server lives; peaks and `*_kv_bytes` cover the time since the
    last flush. A point's share is `after.since(before)`.
    """

    version: str | None = None  # of the server's software, in its own words
    prefill_tokens: int | None = None
    decode_tokens: int | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    decode_steps: int | None = None
    retractions: int | None = None  # requests sent back to the queue for want of memory
    lookups: int | None = None  # selected records looked up in the device cache, all layers
    misses: int | None = None  # of those, fetched from the host pool
    h2d_bytes: int | None = None  # record bytes from the host pool to the device: the next three together
    demand_bytes: int | None = None  # misses that a layer waited for
    prefetch_bytes: int | None = None  # fetched before the layer that selects them ran
    load_bytes: int | None = None  # read back by prefill, and what device caches start with
    d2h_bytes: int | None = None  # record bytes from the device to the host pool: the next two together
    staging_bytes: int | None = None  # prefill's records
    write_through_bytes: int | None = None  # each decode step's new records
    exposed_io_seconds: float | None = None  # decode time spent waiting for record fetches
    prefill_io_seconds: float | None = None  # prefill time spent waiting for records on the link
    peak_running: int | None = None
    device_kv_bytes: int | None = None  # peak reserved by requests: records + selection state + metadata
    device_records_bytes: int | None = None  # of that peak
    device_state_bytes: int | None = None
    device_metadata_bytes: int | None = None
    host_kv_bytes: int | None = None

    PEAKS: ClassVar[tuple[str, ...]] = (
        "peak_running",
        "device_kv_bytes",
        "device_records_bytes",
        "device_state_bytes",
        "device_metadata_bytes",
        "host_kv_bytes",
    )

    def since(self, before: ServerStats) -> ServerStats:
        """Counters as differences from an earlier reading; peaks and what is no number as they are now."""
        out = ServerStats()
        for f in fields(self):
            now, then = getattr(self, f.name), getattr(before, f.name)
            if f.name in (*self.PEAKS, "version") or now is None or then is None:
                setattr(out, f.name, now)
            else:
                setattr(out, f.name, now - then)
        return out


STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
LATENCIES = ("ttft", "tpot", "itl", "e2el")
LATENCY_MEASURES = tuple(f"{s}_{m}_ms" for m in LATENCIES for s in STATISTICS)
PERCENTILES = ("median", "p90", "p95", "p99")
REQUEST_LATENCIES = ("ttft", "tpot", "e2el")  # one value a request; ITL has one a token
WITH_FAILURES = tuple(f"{s}_{m}_ms_with_failures" for m in REQUEST_LATENCIES for s in PERCENTILES)
STEADY_MEASURES = (  # the same, within the window at full concurrency
    "steady_start_s",
    "steady_duration_s",
    "steady_requests",  # completed inside it
    "steady_output_throughput",
    *(f"steady_{name}" for name in LATENCY_MEASURES),
)
INTERVALS = (  # what a bootstrap over requests bounds with 95% confidence, as `_ci_low` and `_ci_high`
    *(f"{s}_{m}_ms" for m in REQUEST_LATENCIES for s in ("mean", "median", "p99")),
    "mean_itl_ms",
)
TIMESTAMP_MEASURES = (  # from the requests' records alone: harness.loadgen.metrics
    "duration_s",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    *LATENCY_MEASURES,
    *WITH_FAILURES,  # percentiles where a failed request took for ever; None: the percentile is infinite
    *(f"{name}_ci_{end}" for name in INTERVALS for end in ("low", "high")),  # None: too few requests
    *STEADY_MEASURES,
    "goodput",  # requests that met every SLO / requests sent; None without an SLO
    "request_goodput",  # those per second
    "output_throughput_per_user",  # tokens/s one user sees: 1 / mean TPOT
    "output_throughput_per_device",
    "mean_concurrency",  # requests in flight, over the duration
    "peak_concurrency",
    "offered_request_rate",  # requests the pacing wanted sent / second; None with fewer than two
    "mean_dispatch_lag_ms",  # from when the pacing wanted a request sent to the socket; part of its TTFT
    "p99_dispatch_lag_ms",
    "max_dispatch_lag_ms",
    "late_dispatches",  # requests sent later than load.late_after_ms
)
PROCESS_MEASURES = (  # of the load generator itself; the worst of its processes
    "lag_p99_ms",  # how late its event loop ran
    "lag_mean_ms",
    "lag_max_ms",
    "lag_share",  # mean lateness / mean TTFT
    "cpu_share",  # CPU time / time, of the measured part
    "cpu_us_per_token",
    "load_processes",
    "clock_uncertainty_ms",  # of the merged timestamps; None with one process
)
CLIENT_MEASURES = TIMESTAMP_MEASURES + PROCESS_MEASURES
SERVER_MEASURES = (
    "decode_only_throughput",  # generated tokens / time the engine spent in decode steps
    "hit_rate",
    "misses_per_step",  # per decode step, all requests and layers together
    "lookups",
    "misses",
    "h2d_bytes",
    "demand_bytes",
    "prefetch_bytes",
    "load_bytes",
    "d2h_bytes",
    "staging_bytes",
    "write_through_bytes",
    "exposed_io_ms_per_token",
    "prefill_io_seconds",
    "prefill_seconds",
    "decode_seconds",
    "device_kv_bytes",
    "device_records_bytes",
    "device_state_bytes",
    "device_metadata_bytes",
    "host_kv_bytes",
    "peak_running",
    "retractions",  # requests sent back to the queue for want of memory
    "decode_tokens",  # the server's own count of tokens generated in decode steps
)
KERNEL_MEASURES = (  # of one call of resolve for one layer and the whole batch (engine=kernels)
    "miss_rate",  # misses / selected entries, 0 to 1
    "resolve_us",
    "probe_scan_us",  # of it: probing the slots, scanning the marks and updating the LRU order
    "io_us",  # of it: fetching the missing records
    "residual_us",  # of it: building the hash table and publishing the slots
    "replay_us",  # the same misses applied to a shared layer's cache
    "floor_us",  # reading the selection once and plain copies of the missing bytes, on the same device
    "reference_us",  # the torch reference of resolve
)
REPLAY_MEASURES = (  # of selections replayed under a policy (engine=replay), beside miss_rate
    "first_step_miss_rate",
    "replayed_selections",  # selected positions that were looked up, all requests, layers and steps together
    "selections_per_s",  # of them, in a second of one core's time; making or reading the selections is not counted
)
QUALITY_MEASURES = (  # of a text's own next tokens, given all before them (engine=quality)
    "perplexity",
    "dense_perplexity",  # of the same tokens with full attention
    "agreement",  # share of tokens for which the likeliest next one is full attention's too, 0 to 1
    "scored_tokens",
)
MEASURES = CLIENT_MEASURES + SERVER_MEASURES + KERNEL_MEASURES + REPLAY_MEASURES + QUALITY_MEASURES


@dataclass(kw_only=True, slots=True)
class ResultRow:
    """One point of the grid: who it is, what it is worth, what was measured."""

    experiment: str
    cell_id: str
    engine: str
    model: str
    selector: str
    platform: str
    offload: str
    top_k: int | None  # None: dense
    cache_slots: int | None  # B; None: the system has no device cache
    workload: str
    input_len: int  # tokens; workload.input_len: exact, the mean of drawn lengths, or the limit of a file's
    output_len: int  # likewise
    concurrency: int
    num_requests: int
    repeat: int
    status: Status
    policy: str | None = None  # replacement policy that was replayed; None for what serves and what is timed
    tokens: int | None = None  # of one step, which share a cache; None where no policy was replayed
    reason: str | None = None  # why the status is not ok
    link: str = "memory copy"  # what host-device copies went over: `memory copy`, `emulated 2 GB/s + 10 us`
    prefetch: str = "none"  # or `exact`, `speculative`; `none (why)` where what was asked for cannot be
    outputs_valid: bool = True  # False for the no-IO oracle: timing counts, outputs do not
    count_source: str | None = None  # where token counts come from
    server_version: str | None = None  # of the server's software, where it says so
    measures: dict[str, float | int | None] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        unknown = set(self.measures) - set(MEASURES)
        if unknown:
            raise ValueError(f"unknown measures {sorted(unknown)}; records.MEASURES lists the known ones")

    def to_flat(self) -> dict[str, Any]:
        """One level of keys, every measure present (None when it was not measured)."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}  # dataclasses.asdict would copy all that lies below
        own["status"] = self.status.value
        measures = own.pop("measures")
        return own | {name: measures.get(name) for name in MEASURES}

    @classmethod
    def from_flat(cls, flat: dict[str, Any]) -> ResultRow:
        """The inverse of `to_flat`. Raises ValueError for a row of another schema version."""
        version = flat.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"row has schema_version {version}, this harness reads {SCHEMA_VERSION}")
        own = {f.name: flat[f.name] for f in fields(cls) if f.name in flat}
        own["status"] = Status(flat["status"])
        return cls(**own, measures={name: flat.get(name) for name in MEASURES})
