"""DeepSeek/GLM-shaped decoder: multi-head latent attention and, beside it, the DSA indexer.

A record is a position's KV latent (kv_lora_rank) followed by its one rotary key (qk_rope_head_dim). Prefill
expands the latent to keys and values per head; decode folds that expansion into the query and the output
("absorbed"), so that attention reads only the selected records (DeepSeek-V2 report, section 2.1.2).

With IndexShare (GLM-5.2) only anchor layers run the indexer; the layers after one attend to its selection.
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
from harness.schema import Config, SelectorKind

INDEX_NORM_EPS = 1e-6  # of the index keys' layer norm, in DeepSeek's and GLM's models alike


@dataclass(slots=True)
class Indexer:
    q: Tensor  # [h i, q_rank]
    k: Tensor  # [i, hidden]
    k_norm: Tensor  # [i], and its bias
    k_bias: Tensor
    weights: Tensor  # [h, hidden]


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
    indexer: Indexer | None  # of an anchor layer
    mlp_norm: Tensor
    mlp: Dense | Experts


@dataclass(slots=True)
class MLAWeights:
    embed: Tensor  # [vocab, hidden]
    layers: list[MLALayer]
    norm: Tensor
    head: Tensor  # [vocab, hidden]


class MLAModel(Model):
    def __init__(self, config: Config, weights: MLAWeights, linear: Linear, attend: AttendSlots):
        model = config.model
        assert model.qk_nope_head_dim is not None
        assert model.qk_rope_head_dim is not None
        assert model.kv_lora_rank is not None
        assert model.v_head_dim is not None
        self.weights = weights
        self.linear, self.attend = linear, attend
        self.feed_forward = FeedForward(model, linear)
        self.heads = model.num_heads
        self.nope, self.rope = model.qk_nope_head_dim, model.qk_rope_head_dim
        self.rank, self.value = model.kv_lora_rank, model.v_head_dim
        self.index_heads, self.index_dim = model.index_num_heads or 0, model.index_head_dim or 0
        self.index_rope = model.index_rope_head_dim
        shares = config.selector.kind is SelectorKind.dsa  # the other selectors choose for each layer
        self.anchors = [model.anchor_of(layer) if shares else layer for layer in range(model.num_layers)]
        self.layout = RecordLayout(1, 0, self.rank)
        self.eps = model.rms_norm_eps
        self.scale = (self.nope + self.rope) ** -0.5
        place = weights.embed.dtype, weights.embed.device
        self.rotary = Rotary(self.rope, config.context_len, model.rope_theta, *place)
        self.index_rotary = Rotary(self.index_rope, config.context_len, model.rope_theta, *place)

    def prefill(self, tokens: Tensor, batch: ChunkBatch, kv: KVSide, selector: Selector) -> Tensor:
        mask = causal = chunk_mask(batch.positions, batch.end)
        x, rotate = self.weights.embed[tokens], self.rotary.at(batch.positions)
        rotate_index = self.index_rotary.at(batch.positions)
        for layer, w in enumerate(self.weights.layers):
            normed = rms_norm(x, w.attn_norm, self.eps)
            q_latent, q = self._queries(normed, w, rotate)
            own = self._records(normed, w, rotate)
            kv.stage(layer, own)
            if self.anchors[layer] == layer:
                keys, query = self._index(normed, q_latent, w, rotate_index) if selector.reads_index else (own, (q,))
                selector.extend(layer, batch, keys)
                chosen = selector.prefill_mask(layer, batch, query)
                mask = causal if chosen is None else chosen
            latent, k_rope = kv.prefix(layer).split((self.rank, self.rope), dim=1)
            k_nope = torch.einsum("sr,hdr->shd", latent, w.k_up)
            k = torch.cat((k_nope, k_rope.unsqueeze(1).expand(-1, self.heads, -1)), dim=2)
            v = torch.einsum("sr,hdr->shd", latent, w.v_up)
            x = self._finish_layer(x, attend_chunk(q, k, v, mask, self.scale), w)
        return self._logits(x[-1:])[0]

    def decode(self, tokens: Tensor, batch: DecodeBatch, kv: KVSide, selector: Selector) -> Tensor:
        x, rotate = self.weights.embed[tokens], self.rotary.at(batch.positions)
        rotate_index = self.index_rotary.at(batch.positions)
        for layer, w in enumerate(self.weights.layers):
            normed = rms_norm(x, w.attn_norm, self.eps)
            q_latent, q = self._queries(normed, w, rotate)
            own = self._records(normed, w, rotate)
            kv.append(layer, own)
            q_nope, q_rope = q.split((self.nope, self.rope), dim=2)
            absorbed = torch.cat((self.linear.per_head(q_nope, w.k_up), q_rope), dim=2)  # [n, H, rank + rope]
            if self.anchors[layer] == layer:
                indexed = self._index(normed, q_latent, w, rotate_index) if selector.reads_index else None
                keys, query = indexed or (own, (absorbed,))
                selector.append(layer, batch, keys)
                selection = selector.select(layer, batch, query)
                slots = kv.resolve(layer, selection)
            else:
                slots = kv.resolve_shared(layer, self.anchors[layer], selection)
            attended = self.attend(absorbed, kv.device_records(layer), slots, self.layout, self.scale)
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

    def _index(
        self, normed: Tensor, q_latent: Tensor, w: MLALayer, rotate: Rotation
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Index keys [m, i] and the indexer's query: ([m, h, i], head weights [m, h])."""
        assert w.indexer is not None
        keys = F.layer_norm(
            self.linear(normed, w.indexer.k), (self.index_dim,), w.indexer.k_norm, w.indexer.k_bias, INDEX_NORM_EPS
        )
        queries = self.linear(q_latent, w.indexer.q).view(len(normed), self.index_heads, self.index_dim)
        weights = self.linear(normed, w.indexer.weights) * (self.index_heads * self.index_dim) ** -0.5
        return self._rotate_front(keys.unsqueeze(1), rotate).squeeze(1), (self._rotate_front(queries, rotate), weights)

    def _rotate_front(self, x: Tensor, rotate: Rotation) -> Tensor:
        """x [m, heads, i]: its first `index_rope_head_dim` channels rotated."""
        if not self.index_rope:
            return x
        return torch.cat((rotate(x[..., : self.index_rope]), x[..., self.index_rope :]), dim=-1)

    def _finish_layer(self, x: Tensor, attended: Tensor, w: MLALayer) -> Tensor:
        x = x + self.linear(attended, w.out)
        return x + self.feed_forward(rms_norm(x, w.mlp_norm, self.eps), w.mlp)

    def _logits(self, x: Tensor) -> Tensor:
        return self.linear(rms_norm(x, self.weights.norm, self.eps), self.weights.head)
