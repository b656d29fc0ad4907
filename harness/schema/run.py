"""What is kept and replayed, where it runs, and who is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from harness.schema.kinds import TrackerKind


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
