"""What a cell runs on, and what the terms of its costs are."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from harness.schema.kinds import Device
from harness.units import show_rate


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
    """Decode attention over selected records, as a share of the peak, for the records' dtype, of the multiprocessors
    that it runs on."""
    memory_efficiency: Scalar = field(default_factory=Scalar)
    """Reading weights, records and selection state, as a share of `memory_bandwidth`; null: all of it."""
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
    multiprocessors: int | None = None
    """Of one device: blocks of a kernel that fill one each run at once, and no more."""
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
