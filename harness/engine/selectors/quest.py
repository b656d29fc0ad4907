"""Quest: pages ranked by an upper bound of the query's attention scores (Tang et al. 2024, section 3.3).

Per page and channel the minimum and maximum key are kept; max(q * min, q * max) summed over channels bounds
q . k for every key of the page. All layers share one selection between heads here, since the KV side takes
one set of positions a layer: the bounds are summed over query heads. The newest page is always taken.
Prefill attends to everything, as in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.device import CPU
from harness.engine.footprint import ceil_div
from harness.engine.selectors.base import Selector
from harness.schema import Config


class Quest(Selector):
    """State: elementwise minimum and maximum key per page, row and layer."""

    def __init__(self, config: Config, num_rows: int, device: torch.device = CPU):
        model, selector = config.model, config.selector
        assert selector.top_k is not None
        assert model.num_kv_heads is not None
        assert model.head_dim is not None
        self.page_size = selector.page_size
        self.num_pages = selector.top_k // selector.page_size
        self.kv_heads, self.head_dim = model.num_kv_heads, model.head_dim
        pages = ceil_div(config.context_len, self.page_size)
        shape = (model.num_layers, num_rows, pages, self.kv_heads * self.head_dim)
        self.low = torch.empty(shape, dtype=getattr(torch, model.dtype.value), device=device)
        self.high = torch.empty_like(self.low)
        self.state = (self.low, self.high)

    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        page = batch.positions // self.page_size
        fresh = ceil_div(batch.start, self.page_size)  # pages that begin in this chunk
        last = ceil_div(batch.end, self.page_size)
        low, high = self.low[layer, batch.row], self.high[layer, batch.row]
        low[fresh:last] = torch.inf
        high[fresh:last] = -torch.inf
        flat = keys.flatten(1)
        low.index_reduce_(0, page, flat, "amin")
        high.index_reduce_(0, page, flat, "amax")

    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        page = batch.positions // self.page_size
        begins = (batch.positions % self.page_size == 0).unsqueeze(1)
        flat = keys.flatten(1)
        low, high = self.low[layer], self.high[layer]
        low[batch.rows, page] = torch.where(begins, flat, torch.minimum(low[batch.rows, page], flat))
        high[batch.rows, page] = torch.where(begins, flat, torch.maximum(high[batch.rows, page], flat))

    def prefill_mask(self, layer: int, batch: ChunkBatch, query: tuple[Tensor, ...]) -> None:
        return None

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        scores = self._bounds(layer, batch, query[0])
        newest = (batch.positions // self.page_size).unsqueeze(1)
        page = torch.arange(scores.shape[1], device=scores.device)
        scores.masked_fill_(page == newest, torch.inf).masked_fill_(page > newest, -torch.inf)
        best, pages = scores.topk(min(self.num_pages, scores.shape[1]), dim=1)
        positions = pages.unsqueeze(2) * self.page_size + torch.arange(self.page_size, device=scores.device)
        taken = (best > -torch.inf).unsqueeze(2) & (positions < batch.seq_lens.view(-1, 1, 1))
        return torch.where(taken, positions, -1).flatten(1).to(torch.int32)

    def _bounds(self, layer: int, batch: DecodeBatch, queries: Tensor) -> Tensor:
        """[n, pages]: sum over query heads of the bound. The sum over the heads of one group is taken first,
        which is the same, since each head's bound is linear in q's positive and in its negative part."""
        used = ceil_div(batch.max_len, self.page_size)
        grouped = queries.view(len(queries), self.kv_heads, -1, self.head_dim)
        positive = grouped.clamp(min=0).sum(2).flatten(1).unsqueeze(2)
        negative = grouped.clamp(max=0).sum(2).flatten(1).unsqueeze(2)
        low = self.low[layer, :, :used].index_select(0, batch.rows)
        high = self.high[layer, :, :used].index_select(0, batch.rows)
        return (torch.bmm(high, positive) + torch.bmm(low, negative)).squeeze(2)
