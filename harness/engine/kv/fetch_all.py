"""Offload without reuse: every selected record crosses the link at every step (`fetch_all`)."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from harness.engine.kv.hierarchy import Hierarchy


class FetchAll(Hierarchy):
    """The device holds one selection per row and layer, in selection order, and the newest record."""

    def finish_prefill(self, row: int, length: int) -> None:
        """Nothing to do: the first step fetches what it selects."""

    def append(self, layer: int, records: Tensor) -> None:
        grows = self._batch.growing >= 0
        self.cache[layer, self._batch.growing[grows], self.num_slots] = records[grows]
        self.write_through(layer)

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        batch = self._batch
        newest = selection == (batch.seq_lens - 1).unsqueeze(1)
        moved = (selection >= 0) & ~newest
        place = torch.where(newest, self.num_slots, torch.arange(selection.shape[1]))
        in_batch, index = moved.nonzero(as_tuple=True)
        rows = batch.rows[in_batch]
        source = self.host.index(rows, selection[in_batch, index].long())
        begin = time.perf_counter()  # as for HiSparse: the copies alone
        self.cache[layer, rows, index] = self.host.records[layer][source]
        self.counters.exposed_io_seconds += time.perf_counter() - begin
        self.counters.lookups += int((selection >= 0).sum())
        self.counters.misses += len(rows)
        self.counters.h2d_bytes += len(rows) * self.footprint.record_bytes
        flat = batch.rows.unsqueeze(1) * (self.num_slots + 1) + place
        return torch.where(selection >= 0, flat, -1).to(torch.int32)
