"""Selection over compressed entries of a few tokens: DeepSeek-V4's compressed sparse attention (report, 2.3.1).

The lightning indexer of DSA, with a key for each entry instead of each token; a query sees the entries whose tokens
all lie before it, or end with it. Beside them a sliding window stays on the device whole, as in Native Sparse Attention
(Yuan et al. 2025, section 3.2), whose selected branch this is.

Selections and layers count what the KV side manages: entries, and the layers that have them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.device import CPU
from harness.engine.selectors.base import Selector
from harness.engine.selectors.index_keys import IndexKeys
from harness.engine.selectors.resident import Resident
from harness.schema import Config


class NSA(Selector):
    """State: one index key per entry, and what is `resident`."""

    reads_index = True

    def __init__(self, config: Config, num_rows: int, device: torch.device = CPU):
        model = config.model
        assert config.selector.top_k is not None
        assert model.record_tokens is not None
        self.top_k, self.tokens = config.selector.top_k, model.record_tokens
        entries = config.context_len // self.tokens
        self.keys = IndexKeys(model, len(model.managed_layers), num_rows, entries, device)
        self.resident = Resident(config, num_rows, device)
        self.state = (self.keys.stored, *self.resident.state)
        self._step: DecodeBatch | None = None
        self._entries: DecodeBatch | None = None

    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        """keys [entries that the chunk completes, i]."""
        self.keys.extend(layer, batch.in_records(self.tokens), keys)

    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        """keys [n, i], of rows whose newest token completes an entry; the others' are ignored."""
        self.keys.append(layer, self._in_entries(batch), keys)

    def prefill_mask(self, layer: int, batch: ChunkBatch, query: tuple[Tensor, ...]) -> Tensor:
        """bool [T, end // tokens]: the entries that each query attends to."""
        entries = torch.arange(batch.end // self.tokens, device=batch.positions.device)
        visible = entries < ((batch.positions + 1) // self.tokens).unsqueeze(1)
        if visible.shape[1] <= self.top_k:
            return visible
        return self.keys.prefill_mask(layer, batch.row, query, visible, self.top_k)

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        entries = self._in_entries(batch)
        if entries.max_len == 0:
            return torch.full((len(batch.rows), 1), -1, dtype=torch.int32, device=batch.rows.device)
        return self.keys.select(layer, entries, query, self.top_k)

    def _in_entries(self, batch: DecodeBatch) -> DecodeBatch:
        if batch is not self._step or self._entries is None:  # a new step: all its layers share the conversion
            self._step, self._entries = batch, batch.in_records(self.tokens)
        return self._entries
