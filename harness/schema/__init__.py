"""The typed config: what Hydra composes, checked once at the edge.

Each dataclass is one group of `conf/`; the docstring under a field says what it means and its unit.
`Config` is the whole; `harness.config` composes it, fills what is derived and refuses what cannot run.
"""

from harness.schema.config import Config
from harness.schema.engine import EngineConfig, OffloadConfig
from harness.schema.kinds import (
    AdmissionRule,
    ArrivalKind,
    ColdStart,
    Device,
    DType,
    EngineKind,
    Family,
    LengthKind,
    LoadMode,
    OffloadSystem,
    Prefetch,
    RouterKind,
    SelectorKind,
    Staging,
    TrackerKind,
    WorkloadKind,
)
from harness.schema.load import LoadConfig
from harness.schema.model import ModelConfig, SelectorConfig
from harness.schema.plain import from_yaml, to_plain, to_yaml
from harness.schema.platform import CostConfig, LinkConfig, NativeCosts, PlatformConfig, Scalar, ServingCosts
from harness.schema.run import ClusterConfig, PolicyConfig, TraceConfig, TrackerConfig
from harness.schema.workload import LocalityConfig, WorkloadConfig

__all__ = [
    "AdmissionRule",
    "ArrivalKind",
    "ClusterConfig",
    "ColdStart",
    "Config",
    "CostConfig",
    "DType",
    "Device",
    "EngineConfig",
    "EngineKind",
    "Family",
    "LengthKind",
    "LinkConfig",
    "LoadConfig",
    "LoadMode",
    "LocalityConfig",
    "ModelConfig",
    "NativeCosts",
    "OffloadConfig",
    "OffloadSystem",
    "PlatformConfig",
    "PolicyConfig",
    "Prefetch",
    "RouterKind",
    "Scalar",
    "SelectorConfig",
    "SelectorKind",
    "ServingCosts",
    "Staging",
    "TraceConfig",
    "TrackerConfig",
    "TrackerKind",
    "WorkloadConfig",
    "WorkloadKind",
    "from_yaml",
    "to_plain",
    "to_yaml",
]
