"""Where KV records live: one interface (`base`), one module per kind of placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.schema import Config, OffloadSystem, Prefetch

if TYPE_CHECKING:
    from harness.engine.kv.base import KVSide


def make_kv(config: Config) -> KVSide:
    """The KV side of `offload.system`; imports torch."""
    from harness.engine.kv.fetch_all import FetchAll
    from harness.engine.kv.full import FullKV
    from harness.engine.kv.hisparse import HiSparse
    from harness.engine.kv.prefetch import ExactPrefetch, SpeculativePrefetch

    kinds: dict[OffloadSystem, type[KVSide]] = {
        OffloadSystem.full_kv: FullKV,
        OffloadSystem.fetch_all: FetchAll,
        OffloadSystem.hisparse_sync: HiSparse,
        OffloadSystem.hisparse_prefetch: ExactPrefetch,
        OffloadSystem.no_io_oracle: ExactPrefetch,
    }
    if config.offload.prefetch is Prefetch.speculative:
        return SpeculativePrefetch(config)
    return kinds[config.offload.system](config)
