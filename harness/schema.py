"""The typed config: what Hydra composes, checked once at the edge.

Each dataclass is one group of `conf/`; the docstring under a field says what it means and its unit.
`Config` is the whole; `harness.config` composes it, fills what is derived and refuses what cannot run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING, OmegaConf


class Family(Enum):
    mla = "mla"
    gqa = "gqa"


class DType(Enum):
    float32 = "float32"
    bfloat16 = "bfloat16"

    @property
    def num_bytes(self) -> int:
        return {"float32": 4, "bfloat16": 2}[self.value]


class SelectorKind(Enum):
    dense = "dense"
    dsa = "dsa"
    quest = "quest"


class OffloadSystem(Enum):
    full_kv = "full_kv"
    fetch_all = "fetch_all"
    hisparse_sync = "hisparse_sync"
    no_io_oracle = "no_io_oracle"

    @property
    def offloads(self) -> bool:
        """Whether the full KV lives in the host pool."""
        return self is not OffloadSystem.full_kv

    @property
    def outputs_valid(self) -> bool:
        """False for the oracle, which attends to stale records."""
        return self is not OffloadSystem.no_io_oracle


class EngineKind(Enum):
    native = "native"
    kernels = "kernels"

    @property
    def serves(self) -> bool:
        """Whether a cell is a server that load is sent to; else it is measured in place (`harness.offline`)."""
        return self is EngineKind.native


class WorkloadKind(Enum):
    random_ids = "random_ids"
    text_files = "text_files"
    sharegpt = "sharegpt"
    longbench_v2 = "longbench_v2"
    mooncake = "mooncake"
    azure = "azure"
    selections = "selections"

    @property
    def sends_requests(self) -> bool:
        """Whether it gives prompts for a server; else selections for an engine that serves nothing."""
        return self is not WorkloadKind.selections

    @property
    def is_trace(self) -> bool:
        """Whether its requests have arrival times."""
        return self in (WorkloadKind.mooncake, WorkloadKind.azure)

    @property
    def reads_files(self) -> bool:
        """Whether its requests, lengths included, are those of `workload.files`."""
        return self.is_trace or self in (WorkloadKind.sharegpt, WorkloadKind.longbench_v2)

    @property
    def needs_tokenizer(self) -> bool:
        return self in (WorkloadKind.text_files, WorkloadKind.sharegpt, WorkloadKind.longbench_v2)


class LengthKind(Enum):
    fixed = "fixed"
    uniform = "uniform"
    lognormal = "lognormal"
    empirical = "empirical"


class LoadMode(Enum):
    closed = "closed"
    open = "open"


class ArrivalKind(Enum):
    constant = "constant"
    poisson = "poisson"
    gamma = "gamma"
    trace = "trace"


class TrackerKind(Enum):
    none = "none"
    wandb = "wandb"


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """A decoder-only transformer. Fields that another family needs stay null."""

    name: str = MISSING
    family: Family = MISSING
    weights: str = "random"
    """`random` (from `seed`), `fetch:NAME` (see `python -m harness.fetch`), or a Hugging Face folder."""
    seed: int = 0
    dtype: DType = DType.float32
    num_layers: int = MISSING
    hidden_size: int = MISSING
    num_heads: int = MISSING
    intermediate_size: int = MISSING
    vocab_size: int = MISSING
    max_positions: int = MISSING
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_embeddings: bool = False
    # GQA
    num_kv_heads: int | None = None
    head_dim: int | None = None
    # MLA
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    # the DSA indexer
    index_top_k: int | None = None
    index_num_heads: int | None = None
    index_head_dim: int | None = None
    # random weights only
    embed_common: float = 0.0
    """Share of each random embedding that is one common direction: makes selections overlap from step to step."""


@dataclass(kw_only=True, slots=True)
class SelectorConfig:
    kind: SelectorKind = MISSING
    top_k: int | None = None
    """Positions a layer may attend to (k). null: the model's own `index_top_k`; must be null for `dense`."""
    page_size: int = 16
    """Quest only: positions per page."""


@dataclass(kw_only=True, slots=True)
class PlatformConfig:
    name: str = MISSING
    num_cpus: float = 1
    """CPU cores reserved for one instance; also the threads its engine computes with."""
    memory: int | str | None = None
    """Host memory reserved for one instance, bytes or `8GiB`; null reserves none."""
    num_devices: int = 1
    """Devices one instance computes on; `output_throughput_per_device` divides by it."""


@dataclass(kw_only=True, slots=True)
class OffloadConfig:
    system: OffloadSystem = MISSING
    cache_slots: int | None = None
    """B, device slots per request and layer; null: 2k. Set by the system itself for full_kv and fetch_all."""


@dataclass(kw_only=True, slots=True)
class EngineConfig:
    kind: EngineKind = MISSING
    context_len: int | None = None
    """Longest prompt + output served; null: the model's `max_positions`."""
    device_kv_budget: int | str = MISSING
    """Device bytes for records, selection state and metadata together (`16MiB`)."""
    host_kv_budget: int | str = MISSING
    """Host pool bytes."""
    page_size: int = 16
    """Positions per page of the host pool and of the full-KV pool."""
    max_running_requests: int = 64
    prefill_chunk_tokens: int = 512
    """Prompt tokens computed between two decode steps, all requests together."""
    batch_invariant: bool = False
    """Pad matrix products to 16 rows, from where BLAS (on one thread) gives a row one result whatever the batch,
    and select and attend one request at a time: greedy text then does not depend on who else is running.
    Costs decode time."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    start_timeout_s: float = 180.0


@dataclass(kw_only=True, slots=True)
class WorkloadConfig:
    kind: WorkloadKind = MISSING
    name: str = MISSING
    input_len: int = MISSING
    """Prompt tokens: of every request (`lengths=fixed`), their mean (`uniform`, `lognormal`), or `max_input_len`
    where a file gives the lengths. Result rows carry this number."""
    output_len: int = MISSING
    """Tokens to generate, likewise; EOS is ignored unless `stop_on_eos`."""
    lengths: LengthKind = LengthKind.fixed
    """How the requests' lengths are drawn; `random_ids` and `text_files` only."""
    input_spread: float = 0.0
    """uniform: half the range as a share of the mean; lognormal: the standard deviation as a share of the mean."""
    output_spread: float = 0.0
    max_input_len: int | None = None
    """Longest prompt of lognormal lengths (longer draws are drawn again) and of files (longer requests are left out;
    LongBench's are cut in their middle)."""
    max_output_len: int | None = None
    length_file: str | None = None
    """empirical: where pairs of lengths are drawn from, a CSV or JSONL file; see `workloads.lengths`."""
    length_scale: float = 1.0
    """Lengths of a trace or of `length_file` are multiplied by this: the shape of a large trace on a small model."""
    stop_on_eos: bool = False
    temperature: float = 0.0
    seed: int = 0
    miss_rate: float | None = None
    """selections only: share of each selection that is not in the device cache, 0 to 1. The context is `input_len`
    positions, and `output_len` decode steps are timed."""
    files: list[str] = field(default_factory=list)
    """text_files: globs of files to cut prompts from; empty: the Python standard library's sources. sharegpt,
    longbench_v2, mooncake and azure: the one file to read."""

    @property
    def longest(self) -> tuple[int, int]:
        """The most prompt tokens and the most output tokens a request can have."""
        if self.lengths is LengthKind.uniform:
            return round(self.input_len * (1 + self.input_spread)), round(self.output_len * (1 + self.output_spread))
        return self.max_input_len or self.input_len, self.max_output_len or self.output_len


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


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    address: str | None = None
    """null: a local Ray for this run; else an existing cluster (`auto`, `host:port`, `ray://host:port`)."""
    loadgen_cpus: float = 1
    """CPU cores reserved for the load generator."""
    ready_timeout_s: float = 120.0
    """How long to wait for the cluster to place an actor."""


@dataclass(kw_only=True, slots=True)
class TrackerConfig:
    kind: TrackerKind = MISSING
    project: str = "hisparse-harness"
    entity: str | None = None
    mode: str = "auto"
    """`auto`: online where a W&B key is found, else offline; `online`; `offline`."""


@dataclass(kw_only=True, slots=True)
class Config:
    """One cell, with its points and with how to run them."""

    name: str = MISSING
    """The experiment: its rows go to `results_dir`/`name`."""
    description: str = ""
    results_dir: str = "results"
    dry_run: bool = False
    retry_failed: bool = False
    """Run points again whose stored row is `failed` or `invalid`."""
    grid: Any = None
    """Axes: {key or group: [values]}, or a list of such mappings (their union)."""
    load: LoadConfig = field(default_factory=LoadConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    platform: PlatformConfig = field(default_factory=PlatformConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)

    @property
    def context_len(self) -> int:
        """Longest prompt + output of a completed config."""
        assert self.engine.context_len is not None, "complete() was not called"
        return self.engine.context_len


def to_yaml(config: Config) -> str:
    """A completed config as text; `from_yaml` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def from_yaml(text: str) -> Config:
    """Raises OmegaConf's errors for unknown keys and wrong types."""
    merged = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(text)))
    assert isinstance(merged, Config)
    return merged


def to_plain(config: Config) -> dict[str, Any]:
    """A completed config as nested plain values, enums by name: for JSON, trackers and hashes."""
    plain = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
