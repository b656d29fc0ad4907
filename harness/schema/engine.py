"""What serves, and where its records live."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from harness.schema.kinds import AdmissionRule, ColdStart, EngineKind, OffloadSystem, Prefetch, Staging


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
