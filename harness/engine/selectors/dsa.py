"""DeepSeek Sparse Attention: the lightning indexer (DeepSeek-V3.2 report, section 2.1).

index score I[t, s] = sum over index heads h of w[t, h] * ReLU(q[t, h] . k[s]); a query attends to the k
positions of highest score among those before it, itself included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.selectors.base import Selector
from harness.schema import Config


class DSA(Selector):
    """State: one index key per position, row and layer."""

    def __init__(self, config: Config, num_rows: int):
        assert config.selector.top_k is not None
        assert config.model.index_head_dim is not None
        self.top_k = config.selector.top_k
        shape = (config.model.num_layers, num_rows, config.context_len, config.model.index_head_dim)
        self.keys = torch.empty(shape, dtype=getattr(torch, config.model.dtype.value))

    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        self.keys[layer, batch.row, batch.start : batch.end] = keys

    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        self.keys[layer, batch.rows, batch.positions] = keys

    def prefill_mask(self, layer: int, batch: ChunkBatch, query: tuple[Tensor, ...]) -> Tensor | None:
        if batch.end <= self.top_k:
            return None  # everything before a query fits its selection
        queries, weights = query
        keys = self.keys[layer, batch.row, : batch.end]
        causal = torch.arange(batch.end) <= batch.positions.unsqueeze(1)
        scores = torch.zeros(batch.end - batch.start, batch.end, dtype=keys.dtype)
        for head in range(queries.shape[1]):  # one head at a time: [T, end] is the largest array held
            scores += weights[:, head : head + 1] * (queries[:, head] @ keys.T).relu_()
        scores.masked_fill_(~causal, -torch.inf)
        chosen = scores.topk(self.top_k, dim=1).indices
        return torch.zeros_like(causal).scatter_(1, chosen, True).logical_and_(causal)

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        queries, weights = query
        keys = self.keys[layer, :, : batch.max_len].index_select(0, batch.rows)
        head_scores = torch.bmm(queries, keys.transpose(1, 2)).relu_()
        scores = torch.bmm(weights.unsqueeze(1), head_scores).squeeze(1)
        scores.masked_fill_(batch.beyond, -torch.inf)
        best, positions = scores.topk(min(self.top_k, batch.max_len), dim=1)
        return torch.where(best > -torch.inf, positions, -1).to(torch.int32)
