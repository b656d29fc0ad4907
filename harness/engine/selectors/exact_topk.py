"""The yardstick from above: the positions that full attention itself weighs most.

A layer has one selection for all its query heads, so positions are ranked by their attention weight summed over the
heads: no other selection of k positions keeps more of the softmax's mass. It needs every key on the device and
reads them all at every step: nothing is saved but the values, and the keys count as selection state. Prefill attends
to everything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.device import CPU
from harness.engine.selection_bytes import attention_key_shape
from harness.engine.selectors.base import Selector
from harness.schema import Config, Family


class ExactTopK(Selector):
    """State: every key, per row and layer."""

    def __init__(self, config: Config, num_rows: int, device: torch.device = CPU):
        model = config.model
        assert config.selector.top_k is not None
        self.top_k = config.selector.top_k
        self.kv_heads, width = attention_key_shape(model)
        # of queries and keys as the model attends with them: MLA's absorbed ones are wider
        query_width = width
        if model.family is Family.mla:
            assert model.qk_nope_head_dim is not None
            assert model.qk_rope_head_dim is not None
            query_width = model.qk_nope_head_dim + model.qk_rope_head_dim
        self.scale = query_width**-0.5
        shape = (model.num_layers, num_rows, self.kv_heads, config.context_len, width)
        self.keys = torch.empty(shape, dtype=getattr(torch, model.dtype.value), device=device)
        self.state = (self.keys,)

    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        per_head = keys.view(len(keys), self.kv_heads, -1)
        self.keys[layer, batch.row, :, batch.start : batch.end] = per_head.transpose(0, 1)

    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        self.keys[layer, batch.rows, :, batch.positions] = keys.view(len(keys), self.kv_heads, -1)

    def prefill_mask(self, layer: int, batch: ChunkBatch, query: tuple[Tensor, ...]) -> None:
        return None

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        n = len(batch.rows)
        keys = self.keys[layer, :, :, : batch.max_len].index_select(0, batch.rows)
        grouped = query[0].view(n, self.kv_heads, -1, keys.shape[-1])
        logits = torch.matmul(grouped, keys.transpose(2, 3)) * self.scale  # [n, G, H/G, S]
        logits = logits.masked_fill(batch.beyond[:, None, None], -torch.inf)
        mass = logits.softmax(dim=-1, dtype=torch.float32).sum((1, 2)).masked_fill_(batch.beyond, -1)
        best, positions = mass.topk(min(self.top_k, batch.max_len), dim=1)
        return torch.where(best >= 0, positions, -1).to(torch.int32)
