"""Random weights of a csa model (DeepSeek-V4's shape); see `random_weights`."""

from __future__ import annotations

import torch

from harness.engine.models.compressor import CompressorWeights
from harness.engine.models.csa import CSALayer, CSAWeights, EntryIndexer
from harness.engine.models.random_weights import QUERY_GAIN, Draw
from harness.schema import ModelConfig


def random_csa(config: ModelConfig) -> CSAWeights:
    draw = Draw(config)
    embed = draw.embedding(config)
    layers = [_layer(config, layer, draw) for layer in range(config.num_layers)]
    return CSAWeights(embed, layers, draw.ones(config.hidden_size), draw.head(config))


def _layer(c: ModelConfig, layer: int, draw: Draw) -> CSALayer:
    assert c.compress_ratios is not None
    assert c.head_dim is not None
    assert c.q_lora_rank is not None
    assert c.out_groups is not None
    assert c.out_lora_rank is not None
    ratio, width = c.compress_ratios[layer], c.num_heads * c.head_dim
    managed = layer in c.managed_layers
    return CSALayer(
        attn_norm=draw.ones(c.hidden_size),
        q_down=draw.matrix(c.q_lora_rank, c.hidden_size),
        q_norm=draw.ones(c.q_lora_rank),
        q_up=draw.matrix(width, c.q_lora_rank),
        # queries are normalised, so that what peaks the attention is the scale of the keys
        kv=draw.matrix(c.head_dim, c.hidden_size),
        kv_norm=draw.ones(c.head_dim) * QUERY_GAIN,
        entries=_compressor(draw, c.hidden_size, c.head_dim, ratio, 2 if managed else 1) if ratio else None,
        indexer=_indexer(c, draw) if managed else None,
        sinks=torch.zeros_like(draw.ones(c.num_heads)),
        out_down=draw.matrix(c.out_groups, c.out_lora_rank, width // c.out_groups),
        out_up=draw.matrix(c.hidden_size, c.out_groups * c.out_lora_rank),
        mlp_norm=draw.ones(c.hidden_size),
        mlp=draw.mlp(c, layer),
    )


def _indexer(c: ModelConfig, draw: Draw) -> EntryIndexer:
    assert c.index_num_heads is not None
    assert c.index_head_dim is not None
    assert c.q_lora_rank is not None
    assert c.record_tokens is not None
    return EntryIndexer(
        q=draw.matrix(c.index_num_heads * c.index_head_dim, c.q_lora_rank),
        weights=draw.matrix(c.index_num_heads, c.hidden_size),
        keys=_compressor(draw, c.hidden_size, c.index_head_dim, c.record_tokens, 2),
    )


def _compressor(draw: Draw, hidden: int, width: int, tokens: int, series: int) -> CompressorWeights:
    return CompressorWeights(
        value=draw.matrix(series * width, hidden),
        gate=draw.matrix(series * width, hidden),
        bias=draw.matrix(tokens, series * width),
        norm=draw.ones(width) * QUERY_GAIN,
    )
