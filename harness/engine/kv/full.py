"""Baseline: every record of every running request stays on the device (`full_kv`)."""

from __future__ import annotations

import hisparse_kernels as kernels
import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.device import CPU, upload
from harness.engine.kv.base import KVSide
from harness.engine.kv.paged import PagedPool
from harness.schema import Config


class FullKV(KVSide):
    def __init__(self, config: Config, device: torch.device = CPU):
        super().__init__(config, device)
        self.counters.timed = device == CPU
        page_bytes = self.page_size * self.num_layers * self.footprint.record_bytes
        num_pages = int(config.engine.device_kv_budget) // page_bytes
        self.pool = PagedPool(
            self.num_layers,
            num_pages,
            self.page_size,
            self.width,
            self.dtype,
            self.state_rows,
            self.pages_per_row,
            device,
        )

    def admit(self, positions: int) -> int:
        row = self._take_row()
        self.pool.allocate(row, positions)
        return row

    def grow(self, row: int, positions: int) -> None:
        self.pool.grow(row, positions)

    def release(self, row: int) -> None:
        self.pool.free(row)
        self._give_row(row)

    def begin_chunk(self, batch: ChunkBatch) -> None:
        row = upload([batch.row], self.device)
        self._prefix = self.pool.index(row, torch.arange(batch.end, device=self.device))
        self._own = self._prefix[batch.start :]

    def stage(self, layer: int, records: Tensor) -> None:
        kernels.stage(records, self.pool.records[layer], self._own)

    def prefix(self, layer: int) -> Tensor:
        return self.pool.records[layer].index_select(0, self._prefix)

    def finish_prefill(self, row: int, length: int) -> None:
        """Nothing to do: the records are where decode reads them."""

    def begin_decode(self, batch: DecodeBatch) -> None:
        # from a position to its record: what to add to it, by page
        table = self.pool.page_table[batch.rows]
        pages = torch.arange(table.shape[1], dtype=torch.int32, device=self.device)
        self._shift = (table - pages) * self.page_size
        self._newest = torch.where(batch.growing >= 0, self.pool.index(batch.rows, batch.positions), -1)

    def append(self, layer: int, records: Tensor) -> None:
        kernels.stage(records, self.pool.records[layer], self._newest)

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        positions = selection.clamp(min=0)
        slots = positions + self._shift.gather(1, (positions // self.page_size).long())
        return slots.masked_fill_(selection < 0, -1)

    def device_records(self, layer: int) -> Tensor:
        return self.pool.records[layer]

    def gather(self, layer: int, slots: Tensor) -> Tensor:
        return kernels.gather(self.pool.records[layer], slots)

    def check_integrity(self) -> None:
        super().check_integrity()
        self.pool.check_integrity(self._held_rows)

    def check_idle(self) -> None:
        super().check_idle()
        self.pool.check_idle()
