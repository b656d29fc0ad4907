"""Everything is selected: what a server without sparse attention computes."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.selectors.base import Selector


class Dense(Selector):
    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        """No state."""

    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        """No state."""

    def prefill_mask(self, layer: int, batch: ChunkBatch, query: tuple[Tensor, ...]) -> None:
        return None

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        positions = torch.arange(batch.max_len, dtype=torch.int32, device=batch.rows.device).expand(len(batch.rows), -1)
        return positions.masked_fill(batch.beyond, -1)
