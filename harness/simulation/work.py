"""What a model computes and reads for a token, in operations and bytes: the part of the costs that knows no seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.engine.footprint import Footprint
from harness.model_sizes import expert_bytes, model_size, rank_devices, weight_bytes
from harness.schema import Config, Family, ModelConfig, SelectorKind
from harness.simulation.pools import state_bytes_per_token

_BLOCK_HEADS = 64
_SPARSE_PREFILL = (SelectorKind.dsa, SelectorKind.nsa)  # trained so; the others select in decode only


@dataclass(frozen=True, slots=True)
class Work:
    """Per token and device, unless said otherwise. `*_flops` count multiplications and additions."""

    rank_weight_bytes: float  # read by every step: a rank's share, on one of its devices
    expert_weight_bytes: float  # all routed experts of one device
    rank_flops: float  # projections of a rank's own tokens, per device of the rank
    spread_flops: float  # MLPs, experts and output: per token of any rank, per device
    pair_flops: float  # attention of one token to one record, in all managed layers, per device of the rank
    local_flops: float  # csa: attention of one token to the window of every layer, per device of the rank
    longer_flops: float  # csa: likewise to the entries of longer spans, per position of the context
    attention_blocks: float  # thread blocks that one request's decode attention in a layer fills; inf: a whole device
    index_flops: float  # indexer: one token against one position of the context, per device of the rank
    state_bytes: float  # selection state read by a decode step per position of the context, per device of the rank
    record_bytes: int  # one record in one layer
    tokens_per_record: int
    layers: int  # managed layers, which have records
    anchors: int  # of those, the ones that select for themselves
    top_k: int
    sparse_prefill: bool


def work_of(config: Config) -> Work:
    """Of a completed config."""
    model, size, per = config.model, model_size(config.model), weight_bytes(config)
    footprint, devices, rank = Footprint(config), config.platform.num_devices, rank_devices(config)
    head = size.head * model.dtype.num_bytes
    return Work(
        rank_weight_bytes=size.attention * per / rank + (size.dense * per + head) / devices,
        expert_weight_bytes=size.routed * expert_bytes(config) / devices,
        rank_flops=2 * size.attention / rank,
        spread_flops=2 * (size.dense + size.routed * size.share_routed + size.head) / devices,
        pair_flops=_pair_flops(model) * footprint.num_layers / rank,
        local_flops=_pair_flops(model) * (model.window or 0) * model.num_layers / rank,
        longer_flops=_pair_flops(model) * _longer_entries(model) / rank,
        attention_blocks=_attention_blocks(model, rank),
        index_flops=_index_flops(config) / rank,
        state_bytes=state_bytes_per_token(config) / rank,
        record_bytes=footprint.record_bytes,
        tokens_per_record=footprint.tokens_per_record,
        layers=footprint.num_layers,
        anchors=sum(model.anchor_of(layer) == layer for layer in model.managed_layers),
        top_k=config.top_k,
        sparse_prefill=config.selector.kind in _SPARSE_PREFILL,
    )


def _pair_flops(model: ModelConfig) -> float:
    """One query token, all heads, against one record in one layer: scores and weighted sum."""
    if model.family is Family.mla:
        assert model.kv_lora_rank is not None
        assert model.qk_rope_head_dim is not None
        return 2.0 * model.num_heads * (2 * model.kv_lora_rank + model.qk_rope_head_dim)
    assert model.head_dim is not None
    return 2.0 * model.num_heads * 2 * model.head_dim


def _attention_blocks(model: ModelConfig, rank: float) -> float:
    """FlashMLA's sparse kernel over 16-bit records, which SGLang decodes with, gives each 64 heads of a token a block
    and does not split a selection (csrc/sm90/prefill/sparse there); fewer heads take as long. Kernels for GQA split."""
    return math.inf if model.family is Family.gqa else model.num_heads / rank / _BLOCK_HEADS


def _longer_entries(model: ModelConfig) -> float:
    """csa: entries of longer spans per position of the context, all layers together."""
    ratios = (model.compress_ratios or [])[: model.num_layers]
    return sum(1.0 / ratio for ratio in ratios if ratio not in (0, model.record_tokens))


def _index_flops(config: Config) -> float:
    """Scores of one query token against one position of the context, in all layers that select."""
    model, kind = config.model, config.selector.kind
    anchors = sum(model.anchor_of(layer) == layer for layer in model.managed_layers)
    if kind in _SPARSE_PREFILL:
        assert model.index_num_heads is not None
        assert model.index_head_dim is not None
        per_entry = 2.0 * model.index_num_heads * model.index_head_dim
        return per_entry * anchors / (model.record_tokens or 1)
    if kind is SelectorKind.quest:  # two bounds a page, of every head
        assert model.head_dim is not None
        return 2.0 * 2 * model.num_heads * model.head_dim * model.num_layers / config.selector.page_size
    if kind is SelectorKind.exact_topk:
        return _pair_flops(model) / 2 * model.num_layers
    return 0.0
