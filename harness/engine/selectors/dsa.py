"""DeepSeek Sparse Attention: the lightning indexer (DeepSeek-V3.2 report, section 2.1).

index score I[t, s] = sum over index heads h of w[t, h] * ReLU(q[t, h] . k[s]); a query attends to the k
positions of highest score among those before it, itself included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.device import CPU
from harness.engine.selectors.base import Selector
from harness.engine.selectors.index_keys import IndexKeys
from harness.schema import Config


class DSA(Selector):
    """State: one index key per position, row and anchor layer."""

    reads_index = True

    def __init__(self, config: Config, num_rows: int, device: torch.device = CPU):
        assert config.selector.top_k is not None
        self.top_k = config.selector.top_k
        anchors = [i for i in range(config.model.num_layers) if config.model.anchor_of(i) == i]
        self._place = {layer: i for i, layer in enumerate(anchors)}
        self.keys = IndexKeys(config.model, len(anchors), num_rows, config.context_len, device)
        self.state = (self.keys.stored,)

    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        self.keys.extend(self._place[layer], batch, keys)

    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        self.keys.append(self._place[layer], batch, keys)

    def prefill_mask(self, layer: int, batch: ChunkBatch, query: tuple[Tensor, ...]) -> Tensor | None:
        if batch.end <= self.top_k:
            return None  # everything before a query fits its selection
        visible = torch.arange(batch.end, device=batch.positions.device) <= batch.positions.unsqueeze(1)
        return self.keys.prefill_mask(self._place[layer], batch.row, query, visible, self.top_k)

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        return self.keys.select(self._place[layer], batch, query, self.top_k)
