"""Weights from a seed, such that attention matters: every layer's KV differs and moves the output.

Matrices are Gaussian with variance 1 / fan-in; queries are scaled up so that attention is peaked rather than
an average. `embed_common` gives every embedding a share of one common direction. Trained models have one too
(their hidden states are far from isotropic), and it is what makes an indexer rank some positions high at
every step: without it, selections of consecutive steps would hardly overlap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.models.gqa import GQALayer, GQAWeights
from harness.engine.models.mla import Indexer, MLALayer, MLAWeights
from harness.engine.models.mlp import Dense, Experts
from harness.schema import ModelConfig

QUERY_GAIN = 3.0


class Draw:
    """Tensors of a model in the order they are asked for, all from one seed."""

    def __init__(self, config: ModelConfig):
        self._generator = torch.Generator().manual_seed(config.seed)
        self._dtype = getattr(torch, config.dtype.value)

    def matrix(self, *shape: int, gain: float = 1.0) -> Tensor:
        """The last dimension is the fan-in."""
        scale = gain * shape[-1] ** -0.5
        return (torch.randn(shape, generator=self._generator) * scale).to(self._dtype)

    def ones(self, size: int) -> Tensor:
        return torch.ones(size, dtype=self._dtype)

    def mlp(self, config: ModelConfig, layer: int) -> Dense | Experts:
        if not config.has_experts(layer):
            assert config.intermediate_size is not None
            return self._dense(config.hidden_size, config.intermediate_size)
        assert config.num_experts is not None
        assert config.expert_intermediate_size is not None
        hidden, width = config.hidden_size, config.expert_intermediate_size
        shared = config.num_shared_experts
        return Experts(
            router=self.matrix(config.num_experts, hidden).float(),
            bias=None,
            gate_up=self.matrix(config.num_experts, 2 * width, hidden),
            down=self.matrix(config.num_experts, hidden, width),
            shared=self._dense(hidden, shared * width) if shared else None,
        )

    def _dense(self, hidden: int, width: int) -> Dense:
        return Dense(gate_up=self.matrix(2 * width, hidden), down=self.matrix(hidden, width))

    def embedding(self, config: ModelConfig) -> Tensor:
        own = torch.randn(config.vocab_size, config.hidden_size, generator=self._generator)
        self._common = torch.randn(config.hidden_size, generator=self._generator)
        share = config.embed_common
        return (share**0.5 * self._common + (1 - share) ** 0.5 * own).to(self._dtype)

    def head(self, config: ModelConfig) -> Tensor:
        """Orthogonal to the common direction, which would otherwise favour the same few tokens always."""
        rows = torch.randn(config.vocab_size, config.hidden_size, generator=self._generator)
        unit = self._common / self._common.norm()
        rows -= (rows @ unit).unsqueeze(1) * unit
        return (rows * config.hidden_size**-0.5).to(self._dtype)


def random_mla(config: ModelConfig) -> MLAWeights:
    draw = Draw(config)
    embed = draw.embedding(config)
    layers = [_mla_layer(config, layer, draw) for layer in range(config.num_layers)]
    return MLAWeights(embed, layers, draw.ones(config.hidden_size), draw.head(config))


def _mla_layer(c: ModelConfig, layer: int, draw: Draw) -> MLALayer:
    assert c.q_lora_rank
    assert c.kv_lora_rank
    assert c.qk_nope_head_dim
    assert c.qk_rope_head_dim
    assert c.v_head_dim
    return MLALayer(
        attn_norm=draw.ones(c.hidden_size),
        q_down=draw.matrix(c.q_lora_rank, c.hidden_size),
        q_norm=draw.ones(c.q_lora_rank),
        q_up=draw.matrix(c.num_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.q_lora_rank, gain=QUERY_GAIN),
        kv_down=draw.matrix(c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size),
        kv_norm=draw.ones(c.kv_lora_rank),
        k_up=draw.matrix(c.num_heads, c.qk_nope_head_dim, c.kv_lora_rank),
        v_up=draw.matrix(c.num_heads, c.v_head_dim, c.kv_lora_rank),
        out=draw.matrix(c.hidden_size, c.num_heads * c.v_head_dim),
        indexer=_indexer(c, draw) if c.anchor_of(layer) == layer else None,
        mlp_norm=draw.ones(c.hidden_size),
        mlp=draw.mlp(c, layer),
    )


def _indexer(c: ModelConfig, draw: Draw) -> Indexer | None:
    if c.index_num_heads is None or c.index_head_dim is None:
        return None
    assert c.q_lora_rank
    width = c.index_head_dim
    return Indexer(
        q=draw.matrix(c.index_num_heads * width, c.q_lora_rank),
        k=draw.matrix(width, c.hidden_size),
        k_norm=draw.ones(width),
        k_bias=torch.zeros_like(draw.ones(width)),
        weights=draw.matrix(c.index_num_heads, c.hidden_size),
    )


def random_gqa(config: ModelConfig) -> GQAWeights:
    draw = Draw(config)
    embed = draw.embedding(config)
    layers = [_gqa_layer(config, layer, draw) for layer in range(config.num_layers)]
    head = embed if config.tie_embeddings else draw.head(config)
    return GQAWeights(embed, layers, draw.ones(config.hidden_size), head)


def _gqa_layer(c: ModelConfig, layer: int, draw: Draw) -> GQALayer:
    assert c.num_kv_heads is not None
    assert c.head_dim is not None
    q = draw.matrix(c.num_heads * c.head_dim, c.hidden_size, gain=QUERY_GAIN)
    kv = draw.matrix(2 * c.num_kv_heads * c.head_dim, c.hidden_size)
    return GQALayer(
        attn_norm=draw.ones(c.hidden_size),
        qkv=torch.cat((q, kv)),
        out=draw.matrix(c.hidden_size, c.num_heads * c.head_dim),
        q_norm=draw.ones(c.head_dim) if c.qk_norm else None,
        k_norm=draw.ones(c.head_dim) if c.qk_norm else None,
        mlp_norm=draw.ones(c.hidden_size),
        mlp=draw.mlp(c, layer),
    )
