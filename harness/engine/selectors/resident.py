"""What a csa model (DeepSeek-V4) keeps of every request on the device, beside the managed entries.

The newest positions of every layer, the inputs of entries that are not complete, and the entries of long spans, of
which there are few. Counted by `selection_bytes`, given up with the row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.device import CPU
from harness.schema import Config


class Resident:
    """State of all layers and rows; `recent`, `recent_index` and `long` have an entry for each layer that needs one."""

    def __init__(self, config: Config, num_rows: int, device: torch.device = CPU):
        model = config.model
        assert model.compress_ratios is not None
        assert model.record_tokens is not None
        assert model.window is not None
        assert model.head_dim is not None
        assert model.index_head_dim is not None
        place: dict[str, Any] = {"dtype": getattr(torch, model.dtype.value), "device": device}
        head, index, m = model.head_dim, model.index_head_dim, model.record_tokens
        self.size = model.window
        self.window = torch.empty(model.num_layers, num_rows, self.size, head, **place)
        self.recent: dict[int, Tensor] = {}  # [R, tokens, width] of each layer with entries: see Compressor
        self.recent_index: dict[int, Tensor] = {}
        self.long: dict[int, Tensor] = {}  # [R, entries, d]
        for layer, ratio in enumerate(model.compress_ratios[: model.num_layers]):
            if ratio == m:
                self.recent[layer] = torch.empty(num_rows, 2 * m, 4 * head, **place)
                self.recent_index[layer] = torch.empty(num_rows, 2 * m, 4 * index, **place)
            elif ratio:
                self.recent[layer] = torch.empty(num_rows, ratio, 2 * head, **place)
                self.long[layer] = torch.empty(num_rows, config.context_len // ratio, head, **place)

    @property
    def state(self) -> tuple[Tensor, ...]:
        per_layer = (*self.recent.values(), *self.recent_index.values(), *self.long.values())
        return (self.window, *(part.unsqueeze(0) for part in per_layer))

    def extend_window(self, layer: int, batch: ChunkBatch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a chunk's kv [T, d]; what its queries may see: kv [S, d], bool [T, S]."""
        ring = self.window[layer, batch.row]
        first = max(0, batch.start - self.size + 1)
        before = torch.arange(first, batch.start, device=kv.device)
        seen = torch.cat((ring[before % self.size], kv))
        kept = min(len(kv), self.size)
        ring[batch.positions[len(kv) - kept :] % self.size] = kv[len(kv) - kept :]
        positions, query = torch.arange(first, batch.end, device=kv.device), batch.positions.unsqueeze(1)
        return seen, (positions <= query) & (positions > query - self.size)

    def append_window(self, layer: int, batch: DecodeBatch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Keep each row's newest kv [n, d]; its window: kv [n, size, d] in the ring's order, valid bool [n, size]."""
        ring = self.window[layer]
        ring[batch.rows, batch.positions % self.size] = kv
        valid = torch.arange(self.size, device=kv.device) < batch.seq_lens.unsqueeze(1)
        # places never written may hold anything, which no weight of 0 would take out of a sum
        return ring[batch.rows].masked_fill(~valid.unsqueeze(2), 0), valid
