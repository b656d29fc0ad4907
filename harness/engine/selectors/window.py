"""The yardstick from below: recency alone, after the first few positions (StreamingLLM, Xiao et al. 2024, section 3).

It asks nothing of the query, so what it misses is what a query-dependent selection is for. Prefill attends to
everything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.selectors.base import Selector
from harness.schema import Config


class Window(Selector):
    """No state: the first `sink` positions and the newest k - sink, all where there are no more than k."""

    def __init__(self, config: Config):
        assert config.selector.top_k is not None
        self.top_k, self.sink = config.selector.top_k, config.selector.sink

    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        """No state."""

    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        """No state."""

    def prefill_mask(self, layer: int, batch: ChunkBatch, query: tuple[Tensor, ...]) -> None:
        return None

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        place = torch.arange(min(self.top_k, batch.max_len), device=batch.rows.device)
        left_out = (batch.seq_lens.unsqueeze(1) - self.top_k).clamp(min=0)
        positions = torch.where(place < self.sink, place, place + left_out)
        return torch.where(positions < batch.seq_lens.unsqueeze(1), positions, -1).to(torch.int32)
