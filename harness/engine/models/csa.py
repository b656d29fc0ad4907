"""DeepSeek-V4-shaped decoder: a sliding window and compressed entries under one shared key-value head.

A record is a compressed entry of `record_tokens` tokens, key and value at once; the indexer selects among them. Layers
with longer entries attend to all of theirs, which stay on the device; layers with none have the window alone
(DeepSeek-V4 report, section 2.3). What the released models have besides, and this has not: hyper-connections between
layers (section 2.2), experts chosen by token id in the first layers, a clipped SwiGLU, YaRN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.kv.base import KVSide
from harness.engine.models.base import Model
from harness.engine.models.compressor import Compressor, CompressorWeights
from harness.engine.models.layers import (
    Linear,
    Rotary,
    Rotation,
    attend_with_sinks,
    attend_with_sinks_one_by_one,
    rms_norm,
    rotate_end,
    unit_rms,
)
from harness.engine.models.mlp import Dense, Experts, FeedForward
from harness.engine.selectors.base import Selector
from harness.engine.selectors.resident import Resident
from harness.schema import Config


@dataclass(slots=True)
class EntryIndexer:
    q: Tensor  # [h i, q_rank]
    weights: Tensor  # [h, hidden]
    keys: CompressorWeights


@dataclass(slots=True)
class CSALayer:
    attn_norm: Tensor  # [hidden]
    q_down: Tensor  # [q_rank, hidden]
    q_norm: Tensor  # [q_rank]
    q_up: Tensor  # [H d, q_rank]
    kv: Tensor  # [d, hidden]
    kv_norm: Tensor  # [d]
    entries: CompressorWeights | None
    indexer: EntryIndexer | None  # of a layer whose entries are selected
    sinks: Tensor  # [H]
    out_down: Tensor  # [groups, rank, H d / groups]
    out_up: Tensor  # [hidden, groups rank]
    mlp_norm: Tensor
    mlp: Dense | Experts


@dataclass(slots=True)
class CSAWeights:
    embed: Tensor  # [vocab, hidden]
    layers: list[CSALayer]
    norm: Tensor
    head: Tensor  # [vocab, hidden]


class CSAModel(Model):
    def __init__(self, config: Config, weights: CSAWeights, linear: Linear):
        model = config.model
        assert model.head_dim is not None
        assert model.qk_rope_head_dim is not None
        assert model.compress_rope_theta is not None
        assert model.index_num_heads is not None
        assert model.index_head_dim is not None
        self.weights, self.linear = weights, linear
        self.feed_forward = FeedForward(model, linear)
        self.one_by_one = config.engine.batch_invariant
        self.heads, self.dim, self.eps = model.num_heads, model.head_dim, model.rms_norm_eps
        self.index_heads, self.index_dim = model.index_num_heads, model.index_head_dim
        self.scale = self.dim**-0.5
        self.managed = {layer: i for i, layer in enumerate(model.managed_layers)}
        rope, longest = model.qk_rope_head_dim, config.context_len
        place = weights.embed.dtype, weights.embed.device
        self.rotary = Rotary(rope, longest, model.rope_theta, *place)
        self.compress_rotary = Rotary(rope, longest, model.compress_rope_theta, *place)
        self._compressors: dict[int, Compressor] = {}
        self._index_compressors: dict[int, Compressor] = {}
        self._resident: Resident | None = None

    def prefill(self, tokens: Tensor, batch: ChunkBatch, kv: KVSide, selector: Selector) -> Tensor:
        resident = self._bind(selector)
        x = self.weights.embed[tokens]
        rotations = self._rotations(batch.positions)
        for layer, w in enumerate(self.weights.layers):
            rotate = rotations[w.entries is not None]
            normed = rms_norm(x, w.attn_norm, self.eps)
            latent, q, own = self._project(normed, w, rotate)
            seen, mask = resident.extend_window(layer, batch, own)
            if w.entries is not None:
                entries = self._compressors[layer].extend(batch, normed)
                if layer in self.managed:
                    at = self.managed[layer]
                    kv.stage(at, entries)
                    selector.extend(at, batch, self._index_compressors[layer].extend(batch, normed))
                    chosen = selector.prefill_mask(at, batch, self._index_query(normed, latent, w, rotate))
                    assert chosen is not None
                    known = kv.prefix(at)
                else:
                    known, chosen = self._long_entries(resident.long[layer], layer, batch, entries)
                seen, mask = torch.cat((seen, known)), torch.cat((mask, chosen), dim=1)
            attended = attend_with_sinks(q, seen, mask, w.sinks, self.scale)
            x = self._finish_layer(x, attended, w, rotate)
        return self._logits(x[-1:])[0]

    def decode(self, tokens: Tensor, batch: DecodeBatch, kv: KVSide, selector: Selector) -> Tensor:
        resident = self._bind(selector)
        attend = attend_with_sinks_one_by_one if self.one_by_one else attend_with_sinks
        x = self.weights.embed[tokens]
        rotations = self._rotations(batch.positions)
        for layer, w in enumerate(self.weights.layers):
            rotate = rotations[w.entries is not None]
            normed = rms_norm(x, w.attn_norm, self.eps)
            latent, q, own = self._project(normed, w, rotate)
            seen, valid = resident.append_window(layer, batch, own)
            if layer in self.managed:
                known, chosen = self._selected(
                    layer, batch, kv, selector, normed, self._index_query(normed, latent, w, rotate)
                )
                seen, valid = torch.cat((seen, known), dim=1), torch.cat((valid, chosen), dim=1)
            elif w.entries is not None:
                known, chosen = self._grown_entries(resident.long[layer], layer, batch, normed)
                seen, valid = torch.cat((seen, known), dim=1), torch.cat((valid, chosen), dim=1)
            x = self._finish_layer(x, attend(q, seen, valid, w.sinks, self.scale), w, rotate)
        return self._logits(x)

    def _selected(
        self,
        layer: int,
        batch: DecodeBatch,
        kv: KVSide,
        selector: Selector,
        normed: Tensor,
        query: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        """Records [n, k, d] of the selected entries and which of them are valid, bool [n, k]."""
        at = self.managed[layer]
        done, entries = self._compressors[layer].append(batch, normed)
        kv.append(at, _spread(entries, done, len(normed)))
        done, keys = self._index_compressors[layer].append(batch, normed)
        selector.append(at, batch, _spread(keys, done, len(normed)))
        selection = selector.select(at, batch, query)
        return kv.gather(at, kv.resolve(at, selection)), selection >= 0

    def _long_entries(self, store: Tensor, layer: int, batch: ChunkBatch, entries: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self._compressors[layer].tokens
        first, last = batch.start // tokens, batch.end // tokens
        store[batch.row, first:last] = entries
        places = torch.arange(last, device=store.device)
        return store[batch.row, :last], places < ((batch.positions + 1) // tokens).unsqueeze(1)

    def _grown_entries(self, store: Tensor, layer: int, batch: DecodeBatch, normed: Tensor) -> tuple[Tensor, Tensor]:
        compressor = self._compressors[layer]
        done, entries = compressor.append(batch, normed)
        store[batch.rows[done], batch.positions[done] // compressor.tokens] = entries
        last = batch.max_len // compressor.tokens
        valid = torch.arange(last, device=store.device) < (batch.seq_lens // compressor.tokens).unsqueeze(1)
        return store[batch.rows, :last].masked_fill(~valid.unsqueeze(2), 0), valid

    def _bind(self, selector: Selector) -> Resident:
        """Each layer's compressors work on the state that the selector keeps for its rows."""
        resident = selector.resident
        assert resident is not None, "a csa model needs selector=nsa"
        if resident is not self._resident:
            rotary, eps = self.compress_rotary, self.eps
            for layer, w in enumerate(self.weights.layers):
                if w.entries is not None:
                    recent = resident.recent[layer]
                    self._compressors[layer] = Compressor(w.entries, recent, self.linear, rotary, eps)
                if w.indexer is not None:
                    recent = resident.recent_index[layer]
                    self._index_compressors[layer] = Compressor(w.indexer.keys, recent, self.linear, rotary, eps)
            self._resident = resident
        return resident

    def _rotations(self, positions: Tensor) -> tuple[Rotation, Rotation]:
        """Of layers with the window alone, and of those with entries."""
        return self.rotary.at(positions), self.compress_rotary.at(positions)

    def _project(self, normed: Tensor, w: CSALayer, rotate: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Query latent [m, q_rank], queries [m, H, d] and the positions' own key-value [m, d]."""
        latent = rms_norm(self.linear(normed, w.q_down), w.q_norm, self.eps)
        q = self.linear(latent, w.q_up).view(len(normed), self.heads, self.dim)
        own = rms_norm(self.linear(normed, w.kv), w.kv_norm, self.eps)
        return latent, rotate_end(unit_rms(q, self.eps), rotate), rotate_end(own.unsqueeze(1), rotate).squeeze(1)

    def _index_query(self, normed: Tensor, latent: Tensor, w: CSALayer, rotate: Rotation) -> tuple[Tensor, Tensor]:
        assert w.indexer is not None
        queries = self.linear(latent, w.indexer.q).view(len(normed), self.index_heads, self.index_dim)
        weights = self.linear(normed, w.indexer.weights) * (self.index_heads * self.index_dim) ** -0.5
        return rotate_end(queries, rotate), weights

    def attention_output(self, attended: Tensor, w: CSALayer, rotate: Rotation) -> Tensor:
        """attended [m, H, d] to [m, hidden]. Values were rotated with their keys; turning the result back by the
        query's position leaves what depends on the distance only. Heads are then mixed in groups."""
        groups = len(w.out_down)
        grouped = rotate_end(attended, rotate.back()).reshape(len(attended), groups, -1)
        return self.linear(self.linear.per_head(grouped, w.out_down.transpose(1, 2)).flatten(1), w.out_up)

    def _finish_layer(self, x: Tensor, attended: Tensor, w: CSALayer, rotate: Rotation) -> Tensor:
        x = x + self.attention_output(attended, w, rotate)
        return x + self.feed_forward(rms_norm(x, w.mlp_norm, self.eps), w.mlp)

    def _logits(self, x: Tensor) -> Tensor:
        return self.linear(rms_norm(x, self.weights.norm, self.eps), self.weights.head)


def _spread(some: Tensor, members: Tensor, count: int) -> Tensor:
    """Rows `some` [g, w] at their batch members int64 [g], zeros elsewhere: [count, w]."""
    return some.new_zeros(count, some.shape[1]).index_copy_(0, members, some)
