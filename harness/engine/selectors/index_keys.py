"""The lightning indexer's keys and scores, of positions (`dsa`) or of compressed entries (`nsa`)."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.device import CPU
from harness.schema import ModelConfig


class IndexKeys:
    """One index key per layer, row and position, stored in `model.index_dtype` and computed with in the model's.

    Scores are summed over the heads in float32, whatever the model's type: positions that tie or change places by a
    rounding would not be the model's selection. Batches count what a key stands for.
    """

    def __init__(self, model: ModelConfig, layers: int, rows: int, positions: int, device: torch.device = CPU):
        assert model.index_head_dim is not None
        dtype = getattr(torch, (model.index_dtype or model.dtype).value)
        self._computed = getattr(torch, model.dtype.value)
        self.stored = torch.empty(layers, rows, positions, model.index_head_dim, dtype=dtype, device=device)

    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        self.stored[layer, batch.row, batch.start : batch.end] = keys.to(self.stored.dtype)

    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        """keys [n, i]; those of rows that do not grow are left out."""
        keys = keys.to(self.stored.dtype)
        if batch.all_grow:
            self.stored[layer, batch.rows, batch.positions] = keys
        else:
            grows = batch.growing >= 0
            self.stored[layer, batch.growing[grows], batch.positions[grows]] = keys[grows]

    def prefill_mask(self, layer: int, row: int, query: tuple[Tensor, ...], visible: Tensor, top_k: int) -> Tensor:
        """Which of a row's first S keys each of T queries selects: bool [T, S], given those it may see."""
        queries, weights = query
        keys = self.stored[layer, row, : visible.shape[1]].to(self._computed)
        scores = torch.zeros(visible.shape, device=keys.device)
        for head in range(queries.shape[1]):  # one head at a time: [T, S] is the largest array held
            scores.addcmul_(weights[:, head : head + 1].float(), (queries[:, head] @ keys.T).relu_().float())
        scores.masked_fill_(~visible, -torch.inf)
        chosen = scores.topk(min(top_k, visible.shape[1]), dim=1).indices
        return torch.zeros_like(visible).scatter_(1, chosen, True).logical_and_(visible)

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...], top_k: int) -> Tensor:
        """Positions int32 [n, min(top_k, max_len)], best first, padded with -1."""
        queries, weights = query
        keys = self.stored[layer, :, : batch.max_len].index_select(0, batch.rows).to(self._computed)
        head_scores = torch.bmm(queries, keys.transpose(1, 2)).relu_().float()
        scores = torch.bmm(weights.float().unsqueeze(1), head_scores).squeeze(1)
        scores.masked_fill_(batch.beyond, -torch.inf)
        best, positions = scores.topk(min(top_k, batch.max_len), dim=1)
        return torch.where(best > -torch.inf, positions, -1).to(torch.int32)
