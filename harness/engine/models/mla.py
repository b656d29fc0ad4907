"""DeepSeek/GLM-shaped decoder: multi-head latent attention and, beside it, the DSA indexer.

A record is a position's KV latent (kv_lora_rank) followed by its one rotary key (qk_rope_head_dim). Prefill
expands the latent to keys and values per head; decode folds that expansion into the query and the output
("absorbed"), so that attention reads only the selected records (DeepSeek-V2 report, section 2.1.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.kv.base import KVSide
from harness.engine.models.base import Model
from harness.engine.models.layers import (
    Attend,
    Linear,
    Rotary,
    Rotation,
    attend_chunk,
    chunk_mask,
    rms_norm,
)
from harness.engine.selectors.base import Selector
from harness.schema import ModelConfig


@dataclass(slots=True)
class MLALayer:
    attn_norm: Tensor  # [hidden]
    q_down: Tensor  # [q_rank, hidden]
    q_norm: Tensor  # [q_rank]
    q_up: Tensor  # [H (nope + rope), q_rank]
    kv_down: Tensor  # [kv_rank + rope, hidden]
    kv_norm: Tensor  # [kv_rank]
    k_up: Tensor  # [H, nope, kv_rank]
    v_up: Tensor  # [H, v, kv_rank]
    out: Tensor  # [hidden, H v]
    index_q: Tensor | None  # [h i, q_rank]; None without an indexer
    index_k: Tensor | None  # [i, hidden]
    index_weights: Tensor | None  # [h, hidden]
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(slots=True)
class MLAWeights:
    embed: Tensor  # [vocab, hidden]
    layers: list[MLALayer]
    norm: Tensor
    head: Tensor  # [vocab, hidden]


class MLAModel(Model):
    def __init__(self, config: ModelConfig, weights: MLAWeights, context_len: int, linear: Linear, attend: Attend):
        assert config.qk_nope_head_dim is not None
        assert config.qk_rope_head_dim is not None
        assert config.kv_lora_rank is not None
        assert config.v_head_dim is not None
        self.weights = weights
        self.linear, self.attend = linear, attend
        self.heads = config.num_heads
        self.nope, self.rope = config.qk_nope_head_dim, config.qk_rope_head_dim
        self.rank, self.value = config.kv_lora_rank, config.v_head_dim
        self.index_heads, self.index_dim = config.index_num_heads or 0, config.index_head_dim or 0
        self.eps = config.rms_norm_eps
        self.scale = (self.nope + self.rope) ** -0.5
        self.rotary = Rotary(self.rope, context_len, config.rope_theta, weights.embed.dtype)

    def prefill(self, tokens: Tensor, batch: ChunkBatch, kv: KVSide, selector: Selector) -> Tensor:
        causal = chunk_mask(batch.start, batch.end)
        x, rotate = self.weights.embed[tokens], self.rotary.at(batch.positions)
        for layer, w in enumerate(self.weights.layers):
            normed = rms_norm(x, w.attn_norm, self.eps)
            q_latent, q = self._queries(normed, w, rotate)
            kv.stage(layer, self._records(normed, w, rotate))
            keys, index_query = self._index(normed, q_latent, w)
            selector.extend(layer, batch, keys)
            mask = selector.prefill_mask(layer, batch, index_query)
            latent, k_rope = kv.prefix(layer).split((self.rank, self.rope), dim=1)
            k_nope = torch.einsum("sr,hdr->shd", latent, w.k_up)
            k = torch.cat((k_nope, k_rope.unsqueeze(1).expand(-1, self.heads, -1)), dim=2)
            v = torch.einsum("sr,hdr->shd", latent, w.v_up)
            attended = attend_chunk(q, k, v, causal if mask is None else mask, self.scale)
            x = self._finish_layer(x, attended, w)
        return self._logits(x[-1:])[0]

    def decode(self, tokens: Tensor, batch: DecodeBatch, kv: KVSide, selector: Selector) -> Tensor:
        x, rotate = self.weights.embed[tokens], self.rotary.at(batch.positions)
        for layer, w in enumerate(self.weights.layers):
            normed = rms_norm(x, w.attn_norm, self.eps)
            q_latent, q = self._queries(normed, w, rotate)
            kv.append(layer, self._records(normed, w, rotate))
            keys, index_query = self._index(normed, q_latent, w)
            selector.append(layer, batch, keys)
            selection = selector.select(layer, batch, index_query)
            records = kv.gather(layer, kv.resolve(layer, selection)).unsqueeze(1)
            q_nope, q_rope = q.split((self.nope, self.rope), dim=2)
            absorbed = self.linear.per_head(q_nope, w.k_up)  # [n, H, rank]
            attended = self.attend(
                torch.cat((absorbed, q_rope), dim=2).unsqueeze(1),
                records,
                records[..., : self.rank],
                selection >= 0,
                self.scale,
            ).squeeze(1)
            values = self.linear.per_head(attended, w.v_up.transpose(1, 2))  # [n, H, v]
            x = self._finish_layer(x, values.flatten(1), w)
        return self._logits(x)

    def _queries(self, normed: Tensor, w: MLALayer, rotate: Rotation) -> tuple[Tensor, Tensor]:
        """Query latent [m, q_rank] and queries [m, H, nope + rope]."""
        latent = rms_norm(self.linear(normed, w.q_down), w.q_norm, self.eps)
        q = self.linear(latent, w.q_up).view(len(normed), self.heads, -1)
        nope, rope = q.split((self.nope, self.rope), dim=2)
        return latent, torch.cat((nope, rotate(rope)), dim=2)

    def _records(self, normed: Tensor, w: MLALayer, rotate: Rotation) -> Tensor:
        latent, rope = self.linear(normed, w.kv_down).split((self.rank, self.rope), dim=1)
        latent = rms_norm(latent, w.kv_norm, self.eps)
        return torch.cat((latent, rotate(rope.unsqueeze(1)).squeeze(1)), dim=1)

    def _index(self, normed: Tensor, q_latent: Tensor, w: MLALayer) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Index keys [m, i] and the indexer's query: ([m, h, i], head weights [m, h])."""
        if w.index_q is None or w.index_k is None or w.index_weights is None:
            return normed, ()
        keys = F.layer_norm(self.linear(normed, w.index_k), (self.index_dim,), eps=self.eps)
        queries = self.linear(q_latent, w.index_q).view(len(normed), self.index_heads, self.index_dim)
        weights = self.linear(normed, w.index_weights) * (self.index_heads * self.index_dim) ** -0.5
        return keys, (queries, weights)

    def _finish_layer(self, x: Tensor, attended: Tensor, w: MLALayer) -> Tensor:
        x = x + self.linear(attended, w.out)
        return x + self.linear.swiglu(rms_norm(x, w.mlp_norm, self.eps), w.gate_up, w.down)

    def _logits(self, x: Tensor) -> Tensor:
        return self.linear(rms_norm(x, self.weights.norm, self.eps), self.weights.head)
