"""The whole config of a cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from harness.schema.engine import EngineConfig, OffloadConfig
from harness.schema.kinds import EngineKind
from harness.schema.load import LoadConfig
from harness.schema.model import ModelConfig, SelectorConfig
from harness.schema.platform import PlatformConfig
from harness.schema.run import ClusterConfig, PolicyConfig, TraceConfig, TrackerConfig
from harness.schema.workload import WorkloadConfig


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
