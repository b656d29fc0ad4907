"""Offload: the host pool holds every record; what of it is on the device is the subclass's choice.

HiSparse sections 3.2 and 3.3. Prefill stages each layer's records to the pool as they are produced and reads
the earlier ones back for its attention, through one layer's workspace; every new record is written through.
"""

from __future__ import annotations

import hisparse_kernels as kernels
import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.kv.base import KVSide
from harness.engine.kv.paged import PagedPool, empty_records
from harness.schema import Config


class Hierarchy(KVSide):
    """Host pool, and per row and layer a device cache of B slots and one for the newest position."""

    def __init__(self, config: Config):
        super().__init__(config)
        page_bytes = self.page_size * self.num_layers * self.footprint.record_bytes
        num_pages = int(config.engine.host_kv_budget) // page_bytes
        self.host = PagedPool(
            self.num_layers,
            num_pages,
            self.page_size,
            self.width,
            self.dtype,
            self.num_rows,
            self.pages_per_row,
        )
        self.num_slots = self.footprint.cache_slots
        self.cache = empty_records(self.num_layers, self.num_rows, self.num_slots + 1, self.width, dtype=self.dtype)
        self._workspace = torch.empty(config.context_len, self.width, dtype=self.dtype)

    def admit(self, positions: int) -> int:
        row = self._take_row()
        self.host.allocate(row, positions)
        return row

    def release(self, row: int) -> None:
        self.host.free(row)
        self._free_rows.append(row)

    def begin_chunk(self, batch: ChunkBatch) -> None:
        self._chunk = batch
        self._prefix = self.host.index(torch.tensor(batch.row), torch.arange(batch.end))

    def stage(self, layer: int, records: Tensor) -> None:
        start, end = self._chunk.start, self._chunk.end
        kernels.stage(records, self.host.records[layer], self._prefix[start:])
        self._workspace[start:end] = records

    def prefix(self, layer: int) -> Tensor:
        """The earlier chunks' records come back from the host pool, the chunk's own are already here."""
        start, end = self._chunk.start, self._chunk.end
        if start:
            torch.index_select(self.host.records[layer], 0, self._prefix[:start], out=self._workspace[:start])
            self.counters.h2d_bytes += start * self.footprint.record_bytes
        return self._workspace[:end]

    def begin_decode(self, batch: DecodeBatch) -> None:
        self._batch = batch
        self._newest = torch.where(batch.growing >= 0, self.host.index(batch.rows, batch.positions), -1)

    def write_through(self, layer: int) -> None:
        kernels.write_through(self.cache[layer], self._batch.rows, self.host.records[layer], self._newest)

    def gather(self, layer: int, slots: Tensor) -> Tensor:
        return kernels.gather(self.cache[layer], slots)

    def check_idle(self) -> None:
        super().check_idle()
        self.host.check_idle()
