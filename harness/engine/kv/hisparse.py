"""HiSparse: B slots per row and layer kept by recency, misses fetched before attention (`hisparse_sync`);
with the copies left out, the no-IO oracle (`no_io_oracle`), whose outputs are invalid."""

from __future__ import annotations

import time

import hisparse_kernels as kernels
import torch
from torch import Tensor

from harness.engine.kv.hierarchy import Hierarchy
from harness.schema import Config, OffloadSystem


class HiSparse(Hierarchy):
    def __init__(self, config: Config):
        super().__init__(config)
        shape = (self.num_layers, self.num_rows, self.num_slots)
        self.slot_positions = torch.empty(shape, dtype=torch.int32)  # written by load_row at admission
        self.lru_order = torch.empty(shape, dtype=torch.int32)
        self._moves_bytes = config.offload.system is not OffloadSystem.no_io_oracle

    def finish_prefill(self, row: int, length: int) -> None:
        """Begin the caches with the last B positions (section 3.3, admission). A prompt too short for a record
        of several tokens begins like one of a single record: with nothing in the B slots."""
        length = max(1, length)
        first = length - 1 - min(length - 1, self.num_slots)
        source = self.host.index(torch.tensor(row), torch.arange(first, length))
        for layer in range(self.num_layers):
            kernels.load_row(
                row,
                length,
                self.slot_positions[layer],
                self.lru_order[layer],
                self.cache[layer],
                self.host.records[layer][source],
            )
        self.counters.h2d_bytes += len(source) * self.num_layers * self.footprint.record_bytes

    def append(self, layer: int, records: Tensor) -> None:
        kernels.append(
            records,
            self._batch.growing,
            self._batch.seq_lens,
            self.slot_positions[layer],
            self.lru_order[layer],
            self.cache[layer],
        )
        self.write_through(layer)

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        slots, plan = kernels.match(
            selection,
            self._batch.rows,
            self._batch.seq_lens,
            self.slot_positions[layer],
            self.lru_order[layer],
            checked=False,  # selectors are of this project; the tests run them through the check
        )
        num_misses = len(plan.rows)
        self.counters.lookups += int((selection >= 0).sum())
        self.counters.misses += num_misses
        if num_misses and self._moves_bytes:
            begin = time.perf_counter()
            kernels.replay(plan, self.cache[layer], self.host.records[layer], self.host.page_table, self.page_size)
            self.counters.exposed_io_seconds += time.perf_counter() - begin
            self.counters.h2d_bytes += num_misses * self.footprint.record_bytes
        return slots
