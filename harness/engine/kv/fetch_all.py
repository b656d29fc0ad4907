"""Offload without reuse: every selected record crosses the link at every step (`fetch_all`)."""

from __future__ import annotations

import hisparse_kernels as kernels
import torch
from hisparse_kernels import Plan
from torch import Tensor

from harness.engine.kv.hierarchy import Hierarchy
from harness.engine.kv.lanes import Lane


class FetchAll(Hierarchy):
    """The device holds one selection per row and layer, in selection order, and the newest record."""

    def finish_prefill(self, row: int, length: int) -> None:
        """Put the newest record where steps that append none will look for it: a record of several tokens is the
        newest for as many steps."""
        super().finish_prefill(row, length)
        if length and self.footprint.tokens_per_record > 1:
            source = self._host_index(row, length - 1, length)

            def copy() -> None:
                for cache, host in zip(self.cache, self.host.records, strict=True):
                    kernels.load(host, source, cache[row, self.num_slots :])

            load = self._submit(Lane.load, copy, self.num_layers)
            self.counters.prefill_io_seconds += self._wait(load)

    def append(self, layer: int, records: Tensor) -> None:
        kernels.stage(records, self.cache[layer].view(-1, self.width), self._newest_slots)
        self.write_through(layer, records)

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        batch = self._batch
        chosen = selection >= 0
        newest = selection == (batch.seq_lens - 1).unsqueeze(1)
        moved = chosen & ~newest
        in_batch, index = moved.nonzero(as_tuple=True)
        plan = Plan(batch.rows[in_batch], index, selection[in_batch, index].long(), moved.sum(1))
        self.counters.lookups += int(chosen.sum())
        self.counters.misses += len(index)
        if len(index):
            self._settle_written(plan)
            self.counters.exposed_io_seconds += self._wait(self._fetch(Lane.demand, layer, plan))
        self._resolved(layer)
        place = torch.where(newest, self.num_slots, torch.arange(selection.shape[1]))
        flat = batch.rows.unsqueeze(1) * (self.num_slots + 1) + place
        return torch.where(chosen, flat, -1).to(torch.int32)
