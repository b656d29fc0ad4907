"""The choices that a key of the config may name."""

from __future__ import annotations

from enum import Enum


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
