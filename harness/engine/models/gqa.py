"""Decoder with grouped-query attention: Llama, Qwen3, Qwen3-MoE. A record is a position's keys, then its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.kv.base import KVSide
from harness.engine.models.base import Model
from harness.engine.models.layers import (
    AttendSlots,
    Linear,
    RecordLayout,
    Rotary,
    Rotation,
    attend_chunk,
    chunk_mask,
    rms_norm,
)
from harness.engine.models.mlp import Dense, Experts, FeedForward
from harness.engine.selectors.base import Selector
from harness.schema import ModelConfig


@dataclass(slots=True)
class GQALayer:
    attn_norm: Tensor  # [hidden]
    qkv: Tensor  # [(H + 2 G) d, hidden]
    out: Tensor  # [hidden, H d]
    q_norm: Tensor | None  # [d], of each head; None without
    k_norm: Tensor | None
    mlp_norm: Tensor
    mlp: Dense | Experts


@dataclass(slots=True)
class GQAWeights:
    embed: Tensor  # [vocab, hidden]
    layers: list[GQALayer]
    norm: Tensor
    head: Tensor  # [vocab, hidden]


class GQAModel(Model):
    def __init__(self, config: ModelConfig, weights: GQAWeights, context_len: int, linear: Linear, attend: AttendSlots):
        assert config.num_kv_heads is not None
        assert config.head_dim is not None
        self.weights = weights
        self.linear, self.attend = linear, attend
        self.feed_forward = FeedForward(config, linear)
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.eps = config.rms_norm_eps
        self.scale = self.head_dim**-0.5
        self.layout = RecordLayout(self.kv_heads, self.kv_heads * self.head_dim, self.head_dim)
        self.rotary = Rotary(self.head_dim, context_len, config.rope_theta, weights.embed.dtype, weights.embed.device)

    def prefill(self, tokens: Tensor, batch: ChunkBatch, kv: KVSide, selector: Selector) -> Tensor:
        causal = chunk_mask(batch.positions, batch.end)
        x, rotate = self.weights.embed[tokens], self.rotary.at(batch.positions)
        for layer, w in enumerate(self.weights.layers):
            q, k, v = self._project(x, w, rotate)
            kv.stage(layer, torch.cat((k.flatten(1), v.flatten(1)), dim=1))
            selector.extend(layer, batch, k)
            mask = selector.prefill_mask(layer, batch, (q,))
            records = kv.prefix(layer).view(batch.end, 2, self.kv_heads, self.head_dim)
            attended = attend_chunk(q, records[:, 0], records[:, 1], causal if mask is None else mask, self.scale)
            x = self._finish_layer(x, attended, w)
        return self._logits(x[-1:])[0]

    def decode(self, tokens: Tensor, batch: DecodeBatch, kv: KVSide, selector: Selector) -> Tensor:
        x, rotate = self.weights.embed[tokens], self.rotary.at(batch.positions)
        for layer, w in enumerate(self.weights.layers):
            q, k, v = self._project(x, w, rotate)
            kv.append(layer, torch.cat((k.flatten(1), v.flatten(1)), dim=1))
            selector.append(layer, batch, k)
            selection = selector.select(layer, batch, (q,))
            slots = kv.resolve(layer, selection)
            attended = self.attend(q, kv.device_records(layer), slots, self.layout, self.scale)
            x = self._finish_layer(x, attended.flatten(1), w)
        return self._logits(x)

    def _project(self, x: Tensor, w: GQALayer, rotate: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        normed = rms_norm(x, w.attn_norm, self.eps)
        heads = self.linear(normed, w.qkv).view(len(x), -1, self.head_dim)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if w.q_norm is not None and w.k_norm is not None:
            q, k = rms_norm(q, w.q_norm, self.eps), rms_norm(k, w.k_norm, self.eps)
        return rotate(q), rotate(k), v

    def _finish_layer(self, x: Tensor, attended: Tensor, w: GQALayer) -> Tensor:
        x = x + self.linear(attended, w.out)
        return x + self.feed_forward(rms_norm(x, w.mlp_norm, self.eps), w.mlp)

    def _logits(self, x: Tensor) -> Tensor:
        return self.linear(rms_norm(x, self.weights.norm, self.eps), self.weights.head)
