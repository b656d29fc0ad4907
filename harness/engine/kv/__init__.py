"""Where KV records live: one interface (`base`), one module per kind of placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.schema import Config, OffloadSystem, Prefetch

if TYPE_CHECKING:
    import torch

    from harness.engine.kv.base import KVSide


def make_kv(config: Config, device: torch.device | None = None) -> KVSide:
    """The KV side of `offload.system` on a device (None: the CPU); imports torch."""
    from harness.engine.device import CPU
    from harness.engine.kv.fetch_all import FetchAll
    from harness.engine.kv.full import FullKV
    from harness.engine.kv.hisparse import HiSparse
    from harness.engine.kv.on_gpu import FetchAllOnGPU, HiSparseOnGPU
    from harness.engine.kv.prefetch import ExactPrefetch, SpeculativePrefetch
    from harness.engine.kv.prefetch_on_gpu import ExactPrefetchOnGPU, SpeculativePrefetchOnGPU

    on_cpu = device is None or device == CPU
    kinds: dict[OffloadSystem, type[KVSide]] = {
        OffloadSystem.full_kv: FullKV,
        OffloadSystem.fetch_all: FetchAll if on_cpu else FetchAllOnGPU,
        OffloadSystem.hisparse_sync: HiSparse if on_cpu else HiSparseOnGPU,
        OffloadSystem.hisparse_prefetch: ExactPrefetch if on_cpu else ExactPrefetchOnGPU,
        OffloadSystem.no_io_oracle: ExactPrefetch if on_cpu else ExactPrefetchOnGPU,
    }
    kind = kinds[config.offload.system]
    if config.offload.prefetch is Prefetch.speculative:
        kind = SpeculativePrefetch if on_cpu else SpeculativePrefetchOnGPU
    return kind(config, device or CPU)
