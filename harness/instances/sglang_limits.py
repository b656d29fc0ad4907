"""What SGLang 0.5.23 cannot serve, with the reason: such a cell is a row of status `infeasible`.

Facts read from the release: `arg_groups/hisparse_hook.py`, `mem_cache/sparsity`, `managers/hisparse_coordinator.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.engine.kv.sharing import shares_selections
from harness.schema import Config, Device, DType, Family, OffloadSystem, SelectorKind
from harness.simulation.pools import record_bytes_per_token, state_bytes_per_token
from harness.units import show_bytes

TESTED = "0.5.23"
MOST_SLOTS = 32767  # its LRU order is held in 16 bits
_OWN_SELECTORS = (SelectorKind.quest, SelectorKind.exact_topk, SelectorKind.window)


def refusal(config: Config) -> str | None:
    """Why SGLang cannot serve a completed cell of engine=sglang, else None."""
    problems = (*_selection(config), *(_offload(config) if config.offload.system.offloads else ()))
    return next(iter(problems), None)


def on_gpu(config: Config) -> bool:
    """Whether the servers of this platform compute on accelerators."""
    return config.platform.accelerator is not None or config.platform.device is Device.cuda


def pool_bytes(config: Config) -> tuple[int, int, int]:
    """Tokens of one device's pool; bytes of its records and selection state there; bytes of all host pools together.

    Selection state is set aside for every token of the host pool. Of records that no heads divide (MLA, csa) each
    tensor-parallel process holds its own.
    """
    engine, records, state = config.engine, record_bytes_per_token(config), state_bytes_per_token(config)
    ratio = engine.host_to_device_ratio or 1.0
    offloads = config.offload.system.offloads
    tokens = int(int(engine.device_kv_budget) / (records + state * (ratio if offloads else 1.0)))
    device = int(tokens * (records + state * (ratio if offloads else 1.0)))
    pools = (engine.tensor_parallel or 1) if offloads else 0
    return tokens, device, int(pools * ratio * tokens * records)


def _selection(config: Config) -> Iterator[str]:
    selector, model = config.selector, config.model
    if selector.kind in _OWN_SELECTORS:
        yield (
            f"SGLang {TESTED} has no selector {selector.kind.value}: its models select by their own indexer, and "
            "others attend to everything (selector=dense)"
        )
    if selector.kind is SelectorKind.dense and model.index_num_heads is not None:
        yield f"SGLang {TESTED} serves {model.name} with its indexer only: selector=dense is not what it computes"
    if selector.kind in (SelectorKind.dsa, SelectorKind.nsa) and selector.top_k != model.index_top_k:
        yield (
            f"SGLang {TESTED} selects as many as the model says (index_top_k={model.index_top_k}), not "
            f"selector.top_k={selector.top_k}"
        )


def _offload(config: Config) -> Iterator[str]:
    offload, model, engine = config.offload, config.model, config.engine
    if offload.system is OffloadSystem.fetch_all:
        yield f"SGLang {TESTED} has no offload without a device cache (offload=fetch_all)"
    if model.family is Family.gqa or model.index_num_heads is None:
        yield (
            f"HiSparse in SGLang {TESTED} serves models with DSA (DeepSeek-V3.2, GLM-5), DeepSeek-V4 and MiniMax-M3, "
            f"not {model.name}"
        )
    if not on_gpu(config):
        yield f"HiSparse in SGLang {TESTED} needs a GPU, and platform={config.platform.name} has none"
    if model.family is Family.mla and model.dtype is not DType.bfloat16:
        yield f"HiSparse in SGLang {TESTED} keeps KV as bfloat16 or fp8_e4m3, not {model.dtype.value}"
    if (offload.cache_slots or 0) > MOST_SLOTS:
        yield f"SGLang {TESTED} numbers device slots in 16 bits: B={offload.cache_slots} is above {MOST_SLOTS}"
    prefetches = offload.system is OffloadSystem.hisparse_prefetch and shares_selections(config)
    if prefetches and engine.pipeline_parallel > 1:
        yield f"SGLang {TESTED} has no prefetch with pipeline parallelism: set engine.pipeline_parallel=1"
    yield from _host_pool(config)


def _host_pool(config: Config) -> Iterator[str]:
    if config.platform.host_memory is None:
        return
    needed, has = pool_bytes(config)[2], int(config.platform.host_memory) * config.num_nodes
    if needed > has:
        ratio = config.engine.host_to_device_ratio or 0.0
        yield (
            f"SGLang's host pools would take {show_bytes(needed)} (engine.host_to_device_ratio={ratio:g}), and "
            f"platform={config.platform.name} has {show_bytes(has)}: lower the ratio"
        )
