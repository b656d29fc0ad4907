"""The typed config: what Hydra composes, checked once at the edge.

Each dataclass is one group of `conf/`; the docstring under a field says what it means and its unit.
`Config` is the whole; `harness.config` composes it, fills what is derived and refuses what cannot run.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

import yaml
from omegaconf import MISSING, OmegaConf

from harness.units import show_rate


class Family(Enum):
    """Shapes of attention, each with its kind of record."""

    mla = "mla"  # DeepSeek-V3, GLM-5: one latent and one rotary key a token
    gqa = "gqa"  # Llama, Qwen3: keys and values of a few heads a token
    csa = "csa"  # DeepSeek-V4: one shared key-value of several tokens, beside a sliding window


class DType(Enum):
    """Named as torch names them."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float8_e4m3fn = "float8_e4m3fn"  # of index keys only

    @property
    def num_bytes(self) -> int:
        return {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1}[self.value]


class Device(Enum):
    """What the native engine computes on."""

    cpu = "cpu"
    cuda = "cuda"


class RouterKind(Enum):
    """How a router's outputs become the scores that experts are chosen and weighted by."""

    softmax = "softmax"  # Qwen3-MoE
    sigmoid = "sigmoid"  # DeepSeek-V3, GLM-5
    sqrt_softplus = "sqrt_softplus"  # DeepSeek-V4


class SelectorKind(Enum):
    dense = "dense"
    dsa = "dsa"
    nsa = "nsa"
    quest = "quest"
    exact_topk = "exact_topk"
    window = "window"


class OffloadSystem(Enum):
    full_kv = "full_kv"
    fetch_all = "fetch_all"
    hisparse_sync = "hisparse_sync"
    hisparse_prefetch = "hisparse_prefetch"
    no_io_oracle = "no_io_oracle"

    @property
    def offloads(self) -> bool:
        """Whether the full KV lives in the host pool."""
        return self is not OffloadSystem.full_kv

    @property
    def keeps_slots(self) -> bool:
        """Whether it has device caches that keep records from step to step."""
        return self.offloads and self is not OffloadSystem.fetch_all

    @property
    def fetches(self) -> bool:
        """Whether records cross the link in decode steps."""
        return self.offloads and self is not OffloadSystem.no_io_oracle

    @property
    def outputs_valid(self) -> bool:
        """False for the oracle, which attends to stale records."""
        return self is not OffloadSystem.no_io_oracle


class Prefetch(Enum):
    """What is fetched before a layer asks for it (HiSparse, section 3.5)."""

    none = "none"
    exact = "exact"
    speculative = "speculative"


class ColdStart(Enum):
    """What a request's device caches hold when its decode begins."""

    empty = "empty"
    last = "last"


class AdmissionRule(Enum):
    """When a request may enter, and what it reserves (see harness.engine.admission)."""

    full_output = "full_output"
    slots = "slots"
    new_token_ratio = "new_token_ratio"
    look_ahead = "look_ahead"

    @property
    def grows(self) -> bool:
        """Whether requests reserve more as they generate, so that memory can run out and requests be retracted."""
        return self is not AdmissionRule.full_output


class Staging(Enum):
    """Where the records of a prompt are while it is computed, with an offload system."""

    streamed = "streamed"  # each layer's go to the host pool as they are made (HiSparse, section 3.3)
    full_pages = "full_pages"  # on the device in full, until one copy at the end (SGLang 0.5.23, colocated)


class EngineKind(Enum):
    native = "native"
    sglang = "sglang"
    external = "external"
    kernels = "kernels"
    simulated = "simulated"
    replay = "replay"
    quality = "quality"

    @property
    def serves(self) -> bool:
        """Whether a cell is a server that load is sent to; else it is measured in place (`harness.offline`)."""
        return self in (EngineKind.native, EngineKind.sglang, EngineKind.external)

    @property
    def takes_requests(self) -> bool:
        """Whether requests are its load, over the wire or in virtual time; else selections."""
        return self.serves or self is EngineKind.simulated

    @property
    def plans_memory(self) -> bool:
        """Whether what requests hold is known before they run; of a server elsewhere it is not."""
        return self.takes_requests and self is not EngineKind.external

    @property
    def models_memory(self) -> bool:
        """Whether memory is planned as SGLang cuts it (`harness.simulation.pools`)."""
        return self in (EngineKind.simulated, EngineKind.sglang)

    @property
    def needs_cluster(self) -> bool:
        """Whether a measurement takes a machine; a simulation is arithmetic."""
        return self is not EngineKind.simulated


class WorkloadKind(Enum):
    random_ids = "random_ids"
    text_files = "text_files"
    sharegpt = "sharegpt"
    longbench_v2 = "longbench_v2"
    mooncake = "mooncake"
    azure = "azure"
    selections = "selections"
    synthetic_selections = "synthetic_selections"
    selection_trace = "selection_trace"

    @property
    def sends_requests(self) -> bool:
        """Whether it gives prompts for a server; else selections for an engine that serves nothing."""
        return self not in _SELECTIONS

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


_SELECTIONS = (WorkloadKind.selections, WorkloadKind.synthetic_selections, WorkloadKind.selection_trace)


class TrackerKind(Enum):
    none = "none"
    wandb = "wandb"


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """A decoder-only transformer. Fields that another family needs stay null."""

    name: str = MISSING
    family: Family = MISSING
    weights: str = "random"
    """`random` (from `seed`), `fetch:NAME` (see `python -m harness.fetch`), or a Hugging Face folder; for sglang and
    external also `hf:ORG/NAME` (a name or a folder that only the server's nodes know)."""
    seed: int = 0
    dtype: DType = DType.float32
    num_layers: int = MISSING
    hidden_size: int = MISSING
    num_heads: int = MISSING
    intermediate_size: int | None = None
    """Width of the dense MLP; null where every layer has experts."""
    vocab_size: int = MISSING
    max_positions: int = MISSING
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_embeddings: bool = False
    # experts, in every layer from `num_dense_layers` on; without `num_experts` all layers are dense
    num_experts: int | None = None
    experts_per_token: int | None = None
    expert_intermediate_size: int | None = None
    num_shared_experts: int = 0
    """Experts that every token uses, computed as one of their joint width."""
    num_dense_layers: int = 0
    router: RouterKind = RouterKind.softmax
    normalize_routing: bool = True
    """Whether the weights of a token's experts are made to sum to 1, before `routed_scale`."""
    routed_scale: float = 1.0
    expert_groups: int = 1
    """Experts are chosen among those of the `groups_per_token` best groups (DeepSeek-V3, section 2.1.2)."""
    groups_per_token: int = 1
    # GQA
    num_kv_heads: int | None = None
    head_dim: int | None = None
    qk_norm: bool = False
    """Whether queries and keys are normalised per head before they are rotated (Qwen3)."""
    # MLA; csa has q_lora_rank and qk_rope_head_dim too
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    # csa (DeepSeek-V4); the head width is head_dim
    compress_ratios: list[int] | None = None
    """Tokens per compressed entry of each layer, 0 for one with the sliding window only. Entries of `record_tokens`
    tokens are the managed records, selected by the indexer; longer ones stay on the device and are all attended to.
    Those at or beyond `num_layers` do not count."""
    record_tokens: int | None = None
    window: int | None = None
    """Newest positions that every layer attends to in full."""
    compress_rope_theta: float | None = None
    """Rotary base of the layers with compressed entries; `rope_theta` is that of the others."""
    out_groups: int | None = None
    out_lora_rank: int | None = None
    # the indexer of DSA and of csa
    index_top_k: int | None = None
    index_num_heads: int | None = None
    index_head_dim: int | None = None
    index_rope_head_dim: int = 0
    """Leading part of the index queries and keys that is rotated (MLA; csa rotates `qk_rope_head_dim` at the end)."""
    index_dtype: DType | None = None
    """Of the stored index keys; null: the model's. DeepSeek and GLM store them in a byte per element."""
    index_anchors: list[int] | None = None
    """Layers that run the indexer; each other one reuses the selection of the nearest before it (IndexShare).
    null: every layer. Those at or beyond `num_layers` do not count, so that a pattern survives a smaller model."""
    weight_bytes: float | None = None
    """Bytes a parameter of the linear layers takes as it is served (1 for FP8), for planning and simulation; null:
    those of `dtype`, which the records have in any case."""
    expert_weight_bytes: float | None = None
    """Likewise for routed experts where they are smaller; null: `weight_bytes`."""
    # random weights only
    embed_common: float = 0.0
    """Share of each random embedding that is one common direction: makes selections overlap from step to step."""

    def has_experts(self, layer: int) -> bool:
        return self.num_experts is not None and layer >= self.num_dense_layers

    @property
    def managed_layers(self) -> list[int]:
        """Layers whose records the KV side places: all, but for csa those with entries of `record_tokens`."""
        if self.compress_ratios is None:
            return list(range(self.num_layers))
        return [i for i, ratio in enumerate(self.compress_ratios[: self.num_layers]) if ratio == self.record_tokens]

    def anchor_of(self, layer: int) -> int:
        """The layer whose selection this one uses: itself, or the nearest anchor before it."""
        anchors = self.index_anchors  # they rise from 0: harness.model_rules
        return layer if anchors is None else anchors[bisect_right(anchors, layer) - 1]


@dataclass(kw_only=True, slots=True)
class SelectorConfig:
    kind: SelectorKind = MISSING
    top_k: int | None = None
    """Records a layer may attend to (k): positions, or for `nsa` compressed entries. null: the model's own
    `index_top_k`; must be null for `dense`."""
    page_size: int = 16
    """Quest only: positions per page."""
    sink: int = 4
    """Window only: first positions that are always attended to, of the k."""


@dataclass(kw_only=True, slots=True)
class LinkConfig:
    """The link between host pool and device, for a platform whose device is host memory."""

    bandwidth: int | str | None = None
    """Bytes a second (`2GB`) imposed on all record copies together; null: the link is a memory copy."""
    latency_us: float = 0.0
    """Microseconds imposed on each transfer, beside the bandwidth."""

    @property
    def label(self) -> str:
        """For rows and figures: `memory copy` or `emulated 2 GB/s + 10 us`."""
        if self.bandwidth is None:
            return "memory copy"
        rate = show_rate(int(self.bandwidth))
        return f"emulated {rate} + {self.latency_us:g} us" if self.latency_us else f"emulated {rate}"


@dataclass(kw_only=True, slots=True)
class Scalar:
    """A number that was fitted or measured, with the one thing that fixed it; null: not known."""

    value: float | None = None
    source: str = ""
    """The published row or the microbenchmark, in words."""


@dataclass(kw_only=True, slots=True)
class CostConfig:
    """What a simulated step costs beyond data sheets (`harness.simulation.costs`)."""

    layer_s: Scalar = field(default_factory=Scalar)
    """Seconds of a decode step per layer, whatever the batch: launches, communication, what lies between kernels."""
    request_s: Scalar = field(default_factory=Scalar)
    """Seconds of a decode step per request of a rank, beyond the terms below; null: none."""
    attention_efficiency: Scalar = field(default_factory=Scalar)
    """Decode attention over selected records, as a share of the peak for the records' dtype."""
    prefill_efficiency: Scalar = field(default_factory=Scalar)
    """Prefill, as a share of the peak of each of its parts."""
    worker_rate: Scalar = field(default_factory=Scalar)
    """Bytes a second at which one request's records are fetched: one thread block or thread a request."""
    link_rate: Scalar = field(default_factory=Scalar)
    """Bytes a second at which a device fetches scattered records while all devices do; null: `host_link`."""
    join_s: Scalar = field(default_factory=Scalar)
    """Exact prefetch: seconds that a shared layer waits for the stream that copies for it, however little it copies:
    events and the start of a kernel; null: none."""


@dataclass(kw_only=True, slots=True)
class ServingCosts:
    """What the native engine's server adds to its engine, as `python -m harness.calibrate` measured it on a machine."""

    request_s: Scalar = field(default_factory=Scalar)
    """Seconds from sending a request to the engine's having it, whatever its length, and its first token's way back."""
    prompt_token_s: Scalar = field(default_factory=Scalar)
    """More, per token of the prompt."""
    entry_s: Scalar = field(default_factory=Scalar)
    """Seconds that a request's arrival takes from the engine's step under way: one interpreter does both."""
    step_s: Scalar = field(default_factory=Scalar)
    """Seconds that streaming adds to a decode step, whatever the batch."""
    token_s: Scalar = field(default_factory=Scalar)
    """More, per token streamed."""
    wake_s: Scalar = field(default_factory=Scalar)
    """How late a thread wakes that waits for the emulated link."""


@dataclass(kw_only=True, slots=True)
class NativeCosts:
    """Seconds of one kind of cell of the native engine (model, selector, offload system, B, threads), measured."""

    step_s: Scalar = field(default_factory=Scalar)
    """A decode step, whatever the batch."""
    request_s: Scalar = field(default_factory=Scalar)
    """More, per request: its share of the weights' work, attention to k records, selection, resolve."""
    position_s: Scalar = field(default_factory=Scalar)
    """More, per request and position of its context: the selector's scores."""
    fetch_s: Scalar = field(default_factory=Scalar)
    """A layer's fetch on the memory-copy link, whatever its records."""
    record_s: Scalar = field(default_factory=Scalar)
    """More, per record fetched."""
    chunk_s: Scalar = field(default_factory=Scalar)
    """A chunk of a prompt, whatever its length."""
    token_s: Scalar = field(default_factory=Scalar)
    """More, per token of the chunk."""
    prefix_s: Scalar = field(default_factory=Scalar)
    """More, per position up to the chunk's end."""
    pair_s: Scalar = field(default_factory=Scalar)
    """More, per token of the chunk and position up to its end."""
    prompt_s: Scalar = field(default_factory=Scalar)
    """What ends a prompt: its first token, and what the device cache starts with."""
    miss_rates: list[list[float]] = field(default_factory=list)
    """Misses over selected records by replay: [B/k, context/k, share] each."""
    miss_source: str = ""


@dataclass(kw_only=True, slots=True)
class PlatformConfig:
    name: str = MISSING
    device: Device = Device.cpu
    """Where weights, caches, page tables and selection state lie. `cuda`: on one local GPU, the host pool in pinned
    memory."""
    cuda_graphs: bool = True
    """cuda only: whether decode steps are captured into CUDA graphs, one for each size of batch and context."""
    num_devices: int = 1
    """Devices of one node that an instance computes on; `output_throughput_per_device` divides by their number."""
    accelerator: str | None = None
    """Their kind, as sold; null: the CPU."""
    device_memory: int | str | None = None
    """Bytes of one device."""
    memory_bandwidth: int | str | None = None
    """Bytes a second that one device reads from its memory."""
    flops: float | None = None
    """Dense floating-point operations a second of one device, for weights and records of two bytes or more."""
    flops_fp8: float | None = None
    """For weights of one byte; null where it has none: they then run at `flops`."""
    host_link: int | str | None = None
    """Bytes a second from the host to one device, one direction."""
    host_memory: int | str | None = None
    """Bytes of the node that holds the devices."""
    driver: str | None = None
    """The GPUs' driver that is to be there, as far as given: `570` takes 570.86; null: any."""
    costs: CostConfig = field(default_factory=CostConfig)
    serving: ServingCosts = field(default_factory=ServingCosts)
    native: dict[str, NativeCosts] = field(default_factory=dict)
    """Of a calibrated machine: kind of cell -> its costs (`harness.native_rules`). With it, engine=simulated predicts
    the native engine there, and needs none of the data sheet's numbers."""
    num_cpus: float = 1
    """CPU cores reserved for one instance; also the threads its engine computes with."""
    memory: int | str | None = None
    """Host memory reserved for one instance, bytes or `8GiB`; null reserves none."""
    link: LinkConfig = field(default_factory=LinkConfig)

    @property
    def link_label(self) -> str:
        """What copies between host pool and device go over, for rows and figures."""
        return "the GPU's own" if self.device is Device.cuda else self.link.label


@dataclass(kw_only=True, slots=True)
class OffloadConfig:
    system: OffloadSystem = MISSING
    cache_slots: int | None = None
    """B, device slots per request and layer; null: 2k. Set by the system itself for full_kv and fetch_all."""
    prefetch: Prefetch | None = None
    """`exact`: an anchor's misses are copied into the layers that share its selection while those between compute;
    `speculative`: a layer's selection is a hint for the next one. null: what the system implies. With the oracle,
    `exact` means that shared layers reuse their anchor's slots, and `none` that each resolves on its own."""
    cold_start: ColdStart = ColdStart.last
    """What the device caches hold when decode begins: nothing, or the last B positions of the prompt."""


@dataclass(kw_only=True, slots=True)
class EngineConfig:
    kind: EngineKind = MISSING
    context_len: int | None = None
    """Longest prompt + output served; null: the model's `max_positions`."""
    device_kv_budget: int | str = MISSING
    """Device bytes for records, selection state and metadata together (`16MiB`), of each rank. `auto` (simulated and
    sglang): what `memory_fraction` of the platform's device leaves beside the weights."""
    host_kv_budget: int | str = MISSING
    """Host pool bytes, of each rank. `auto` (simulated and sglang): the rank's share of `host_fraction` of the node's
    memory."""
    memory_fraction: float = 0.85
    """Simulated and sglang: share of device memory for weights and KV together (SGLang's --mem-fraction-static)."""
    host_fraction: float = 0.9
    """Simulated and sglang: share of the node's memory that host pools may take."""
    data_parallel: int | None = None
    """Simulated and sglang: ranks that each hold requests of their own and step together; null: one on every device.
    With fewer, the devices of a rank share its attention as tensor parallelism does (SGLang's DP attention)."""
    tensor_parallel: int | None = None
    """sglang only: --tp-size, devices that share each layer; null: all of the platform's, over `pipeline_parallel`.
    With more devices than one node has (`platform.num_devices`), the instance spans several nodes."""
    pipeline_parallel: int = 1
    """sglang only: --pp-size."""
    python: str | None = None
    """sglang only: the interpreter that has SGLang, on the node the instance runs on; null: this project's own, where
    its extra `sglang` is installed."""
    server_args: list[str] = field(default_factory=list)
    """sglang only: more flags for its launch, as on a command line, such as [--moe-runner-backend triton]. A flag that
    the config sets is refused."""
    env: list[str] = field(default_factory=list)
    """sglang only: NAME=VALUE each, set in its environment. It is written to result files: no keys or tokens."""
    url: str | None = None
    """external only: base URL of the running server, such as http://host:8000."""
    host_to_device_ratio: float | None = None
    """Simulated and sglang: pools as SGLang cuts them, the host's this many times the device's in tokens, with
    selection state for all of them reserved; null, simulated: each request counts what it holds, as the native engine
    does; null, sglang: 2, its default."""
    staging: Staging = Staging.streamed
    """Simulated only: what an offload system holds of a prompt on the device while it is computed."""
    page_size: int = 16
    """Positions per page of the host pool and of the full-KV pool."""
    max_running_requests: int = 64
    prefill_chunk_tokens: int = 512
    """Prompt tokens computed between two decode steps, all requests together."""
    admission: AdmissionRule = AdmissionRule.full_output
    """`full_output`: a request reserves prompt and whole output. `slots` (offload systems): B slots on the device for
    good, pages of the host pool as they fill. `new_token_ratio`: what it holds now, by an estimate of what is to come.
    The last two may retract requests, which are computed again later and lose no token."""
    schedule_conservativeness: float = 1.0
    """new_token_ratio only: scales the share of their output that running requests are expected to generate."""
    batch_invariant: bool = False
    """Pad matrix products to 16 rows, from where BLAS (on one thread) gives a row one result whatever the batch,
    and select and attend one request at a time: greedy text then does not depend on who else is running.
    Costs decode time."""
    host: str = "127.0.0.1"
    """Where the server listens. On an existing cluster the default means its node's address there, so that the load
    generator reaches it from other nodes."""
    port: int = 0
    """0: any free port."""
    start_timeout_s: float = 180.0


@dataclass(kw_only=True, slots=True)
class LocalityConfig:
    """How a synthetic selection stream keeps and changes what it selects; see `workloads.traces.synthetic`.

    Weights are standard deviations of the parts of a position's score.
    """

    static_weight: float = 1.0
    """What never changes."""
    slow_weight: float = 0.43
    slow_rho: float = 0.95
    """Correlation of the slow part with itself one step later."""
    fast_weight: float = 0.27
    fast_rho: float = 0.6
    noise_weight: float = 0.2
    """Fresh at every step."""


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
    locality: LocalityConfig = field(default_factory=LocalityConfig)
    """synthetic_selections only. The context grows from `input_len` by one position in each of `output_len` steps."""
    trace: str | None = None
    """selection_trace only: a file that `trace.record` or `python -m workloads` made."""
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
class TraceConfig:
    record: bool = False
    """Keep what every layer selects at every decode step of the measured requests: `selections.trace` in the
    point's folder."""


@dataclass(kw_only=True, slots=True)
class PolicyConfig:
    """engine=replay only: what keeps `offload.cache_slots` entries of each request and layer."""

    policy: str = "lru"
    """A replacement policy by name; `python -m workloads replay --help` lists them."""
    tokens: int = 1
    """Tokens of one decode step, which share the cache in order: 1 + N with multi-token prediction of N."""
    empty: bool = False
    """Whether the caches begin empty, not with the newest positions of the prompt."""
    parameters: list[str] = field(default_factory=list)
    """The policy's own, where they shall differ from its defaults: NAME:NUMBER each, such as buckets:4."""


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    address: str | None = None
    """null: a local Ray for this run; else an existing cluster (`auto`, `host:port`)."""
    loadgen_cpus: float = 1
    """CPU cores reserved for the load generator."""
    ready_timeout_s: float = 120.0
    """How long to wait for the cluster to place an actor."""
    exclusive: bool = True
    """A cell owns its nodes while it is measured: all their CPUs and GPUs are taken, beside the load generator's.
    false: cells that fit on the cluster side by side run side by side, each with a load generator of its own; their
    `env.json` says beside whom."""
    cell_timeout_s: float | None = None
    """A cell that takes longer, with the start of its instance and all tries, ends: what is left of it fails."""
    point_timeout_s: float | None = None
    """A point that takes longer, with its warm-up, fails; the next one runs."""
    retries: int = 2
    """How often a point is tried again by itself after what may pass: a node or an actor lost, a server or a load
    generator killed, a port taken."""
    retry_wait_s: float = 5.0
    """The pause before that, doubled after each further failure, at most 5 minutes."""
    budget_s: float | None = None
    """For the whole run: once these seconds are used up, no point is started any more. The same command goes on."""


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
    break_lock: bool = False
    """Take the results folder from a driver on a host that has died, where the file system still says it is held."""
    grid: Any = None
    """Axes: {key or group: [values]}, or a list of such mappings (their union)."""
    load: LoadConfig = field(default_factory=LoadConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    platform: PlatformConfig = field(default_factory=PlatformConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
    replay: PolicyConfig = field(default_factory=PolicyConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)

    @property
    def devices(self) -> int:
        """Devices that one instance of a completed config computes on, on all its nodes."""
        engine = self.engine
        if engine.kind is EngineKind.sglang:
            return (engine.tensor_parallel or 1) * engine.pipeline_parallel
        return self.platform.num_devices

    @property
    def num_nodes(self) -> int:
        """Nodes that one instance of a completed config spans."""
        return -(-self.devices // self.platform.num_devices)

    @property
    def context_len(self) -> int:
        """Longest prompt + output of a completed config."""
        assert self.engine.context_len is not None, "complete() was not called"
        return self.engine.context_len

    @property
    def top_k(self) -> int:
        """k of a completed config: positions a layer may attend to (the whole context for `dense`)."""
        k = self.selector.top_k
        return self.context_len if k is None else k


def to_yaml(config: Config) -> str:
    """A completed config as text; `from_yaml` reads it back."""
    return str(yaml.dump(to_plain(config), Dumper=_Dumper, allow_unicode=True, sort_keys=False))


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # one of two classes
    """Quotes every string that begins like a number: OmegaConf reads more of them as numbers than PyYAML."""


def _represent_str(dumper: Any, text: str) -> yaml.ScalarNode:
    number_like = text[:1] in set("0123456789+-.")
    node = dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if number_like else None)
    assert isinstance(node, yaml.ScalarNode)
    return node


_Dumper.add_representer(str, _represent_str)


def from_yaml(text: str) -> Config:
    """Raises OmegaConf's errors for unknown keys and wrong types."""
    merged = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(text)))
    assert isinstance(merged, Config)
    return merged


def to_plain(config: Config) -> dict[str, Any]:
    """A completed config as nested plain values, enums by name: for JSON, trackers and hashes.

    What OmegaConf.to_container makes of it, a hundred times as fast: a sweep asks several times a cell.
    """
    plain = _plain(config)
    assert isinstance(plain, dict)
    return plain


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        plain = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        whole = [f.name for f in fields(value) if str(f.type).startswith("float") and type(plain[f.name]) is int]
        return plain | {name: float(plain[name]) for name in whole}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
