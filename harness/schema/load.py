"""How a cell is driven, and what makes a point of it invalid."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from harness.schema.kinds import ArrivalKind, LoadMode


@dataclass(kw_only=True, slots=True)
class LoadConfig:
    """How an instance is driven: one point per concurrency and repeat."""

    mode: LoadMode = LoadMode.closed
    """closed: workers that each send their next request when their last has ended; open: requests arrive by a clock,
    whatever the server does."""
    concurrencies: list[int] = MISSING
    """closed: workers. open: the most requests in flight; one that arrives beyond waits, which its TTFT counts."""
    repeats: int = 1
    num_requests: int | None = None
    """N of every point; give this or `requests_per_worker`, never neither."""
    requests_per_worker: int | None = None
    """N = this x concurrency; closed loop only."""
    max_seconds: float | None = None
    """No request is sent that is due later than this after the first one; those in flight are waited for. With it,
    N is a bound."""
    warmup_requests: int = 1
    """Sent and drained before the measured part, with prompts of their own."""
    stagger_s: float = 0.0
    """closed: time between the workers' first requests; 0 starts all at once."""
    arrivals: ArrivalKind | None = None
    """open: equal gaps, a Poisson process, gamma-distributed gaps, or the workload's own times."""
    request_rate: float | None = None
    """open: mean arrivals per second; null for `arrivals=trace`."""
    burstiness: float = 1.0
    """gamma: its shape. 1 is Poisson; below 1 arrivals come in bursts, above 1 they are more regular."""
    slowdown: float = 1.0
    """trace: the times between arrivals are multiplied by this; 0.1 replays ten times faster."""
    processes: int = 1
    """Load-generator processes, each with `cluster.loadgen_cpus`, for more than one can hold."""
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 600.0
    idle_timeout_s: float = 120.0
    total_timeout_s: float = 3600.0
    # what makes a point invalid; the measured value is in its row
    max_lag_p99_ms: float = 100.0
    """The client's event loop ran later than this at p99 (`lag_p99_ms`)."""
    max_lag_share: float = 0.1
    """The client's mean lateness is more than this share of the mean TTFT it measured (`lag_share`)."""
    max_cpu_share: float = 0.9
    """The client's process computed for more than this share of the time (`cpu_share`; it has one busy thread)."""
    min_completed: int = 1
    """Fewer requests than this completed (`completed`)."""
    max_failed_share: float = 0.0
    """More than this share of the requests failed. An output of the wrong length is never allowed."""
    max_token_mismatch: float = 0.0
    """The server's own count of generated tokens differs by more than this share from what came."""
    # what is counted and reported
    late_after_ms: float = 10.0
    """A request sent this much later than the pacing wanted counts as a late dispatch."""
    slo_ttft_ms: float | None = None
    """Goodput counts requests that met every limit given here and in the two keys below."""
    slo_tpot_ms: float | None = None
    slo_e2el_ms: float | None = None
