"""Offload: the host pool holds every record; what of it is on the device is the subclass's choice.

HiSparse sections 3.2 and 3.3. Prefill stages each layer's records to the pool as they are produced and reads
the earlier ones back for its attention, through one layer's workspace; every new record is written through. Both
happen on lanes beside the computation, and are waited for by what needs their records.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import hisparse_kernels as kernels
import torch
from hisparse_kernels import Plan
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.device import CPU, upload
from harness.engine.kv.base import KVSide
from harness.engine.kv.cuda_lanes import CudaLanes
from harness.engine.kv.lanes import AnyLanes, AnyTransfer, Lane, Lanes
from harness.engine.kv.link import Link
from harness.engine.kv.paged import PagedPool, empty_records
from harness.schema import Config


class Unwritten(NamedTuple):
    """One step's new records on their way to the host pool."""

    transfer: AnyTransfer
    host_index: Tensor  # int64 [n], -1: none


class Hierarchy(KVSide):
    """Host pool, and per row and layer a device cache of B slots and one for the newest position."""

    def __init__(self, config: Config, device: torch.device = CPU):
        super().__init__(config, device)
        page_bytes = self.page_size * self.num_layers * self.footprint.record_bytes
        num_pages = int(config.engine.host_kv_budget) // page_bytes
        self.host = PagedPool(
            self.num_layers,
            num_pages,
            self.page_size,
            self.width,
            self.dtype,
            self.state_rows,
            self.pages_per_row,
            device,
            in_host=True,
        )
        self.num_slots = self.footprint.cache_slots
        shape = self.num_layers, self.num_rows, self.num_slots + 1, self.width
        self.cache = empty_records(*shape, dtype=self.dtype, device=device)
        self.lanes: AnyLanes = Lanes(Link(config.platform.link)) if device == CPU else CudaLanes()
        positions = self.footprint.num_records(config.context_len)
        self._workspace = torch.empty(positions, self.width, dtype=self.dtype, device=device)
        self._staged: dict[int, list[list[AnyTransfer]]] = {}  # by row in prefill, then by layer
        self._fresh: list[Tensor] = []  # this step's new records, by layer
        self._unwritten: deque[Unwritten] = deque()

    def admit(self, positions: int) -> int:
        row = self._take_row()
        self.host.allocate(row, positions)
        self._staged[row] = [[] for _ in range(self.num_layers)]
        return row

    def grow(self, row: int, positions: int) -> None:
        self.host.grow(row, positions)

    def release(self, row: int) -> None:
        """The row's pages may go to another request at once: nothing may still be on its way to them."""
        for transfers in self._staged.pop(row, []):
            for transfer in transfers:
                transfer.settle()
        for unwritten in self._unwritten:
            unwritten.transfer.settle()
        self.host.free(row)
        self._give_row(row)

    def begin_chunk(self, batch: ChunkBatch) -> None:
        self._chunk = batch
        self._prefix = self._host_index(batch.row, 0, batch.end)

    def stage(self, layer: int, records: Tensor) -> None:
        row, start, end = self._chunk.row, self._chunk.start, self._chunk.end
        copy = partial(kernels.stage, records, self.host.records[layer], self._prefix[start:])
        self._staged[row][layer].append(self._submit(Lane.staging, copy, end - start))
        self._workspace[start:end] = records

    def prefix(self, layer: int) -> Tensor:
        """The earlier chunks' records come back from the host pool, the chunk's own are already here."""
        row, start, end = self._chunk.row, self._chunk.start, self._chunk.end
        if start:
            pool, index, place = self.host.records[layer], self._prefix[:start], self._workspace[:start]
            for staged in self._staged[row][layer][:-1]:
                staged.settle()  # what was staged before arrives before: the link keeps its order
            load = self._submit(Lane.load, partial(kernels.load, pool, index, place), start)
            self.counters.prefill_io_seconds += self._wait(load)
        return self._workspace[:end]

    def finish_prefill(self, row: int, length: int) -> None:
        """Everything is in the host pool before the first decode step may fetch it (section 3.3, admission)."""
        self.counters.prefill_io_seconds += self._wait(*(t for staged in self._staged.pop(row) for t in staged))

    def begin_decode(self, batch: DecodeBatch) -> None:
        self._batch = batch
        self._newest = torch.where(batch.growing >= 0, self.host.index(batch.rows, batch.positions), -1)
        self._newest_slots = torch.where(
            batch.growing >= 0, batch.rows * (self.num_slots + 1) + self.num_slots, -1
        )  # flat, where each new record goes on the device

    def write_through(self, layer: int, records: Tensor) -> None:
        """Have the new records [n, W] of a layer sent to the host pool, with those of the step's other layers."""
        self._fresh.append(records)

    def _resolved(self, layer: int) -> None:
        """A layer's fetches are on the link: after those of the last, the step's new records follow."""
        if layer == self.num_layers - 1:
            fresh, pool, index = self._fresh, self.host.records, self._newest

            def copy() -> None:
                begins = torch.arange(0, pool.shape[0] * pool.shape[1], pool.shape[1]).unsqueeze(1)
                everywhere = torch.where(index >= 0, begins + index, -1).flatten()
                kernels.stage(torch.cat(fresh), pool.view(-1, self.width), everywhere)

            self._fresh = []
            transfer = self._submit(Lane.write_through, copy, self.num_layers * int((index >= 0).sum()))
            self._unwritten.append(Unwritten(transfer, index))
            self._forget_written()

    def _forget_written(self) -> None:
        """Raises what a copy raised that nobody has waited for: its records are not in the host pool."""
        while self._unwritten and self.lanes.arrived(self._unwritten[0].transfer):
            self._unwritten.popleft().transfer.settle()

    def device_records(self, layer: int) -> Tensor:
        return self.cache[layer]

    def gather(self, layer: int, slots: Tensor) -> Tensor:
        return kernels.gather(self.cache[layer], slots)

    def check_integrity(self) -> None:
        super().check_integrity()
        self._settle_all()
        if isinstance(self.lanes, CudaLanes):
            self.lanes.synchronize()
        self.host.check_integrity(self._held_rows)
        assert set(self._staged) <= self._held_rows, "staging of a row that nobody holds"

    def check_idle(self) -> None:
        super().check_idle()
        self.host.check_idle()
        assert not self._staged, f"rows {sorted(self._staged)} are still being staged"

    def _host_index(self, row: int, start: int, end: int) -> Tensor:
        """Host records int64 [end - start] of a row's positions, on the device."""
        positions = torch.arange(start, end, device=self.device)
        return self.host.index(upload([row], self.device), positions)

    def _fetch(self, lane: Lane, layer: int, plan: Plan) -> AnyTransfer:
        """Submit the copies of a plan's misses into a layer's cache."""
        pool, table = self.host.records[layer], self.host.page_table
        copy = partial(kernels.replay, plan, self.cache[layer], pool, table, self.page_size)
        return self._submit(lane, copy, len(plan.rows))

    def _settle_written(self, plan: Plan) -> None:
        """Have those records in the host pool that the plan's copies will read.

        They arrive before what is submitted after them: the link keeps its order. Most plans wait for nothing.
        """
        self._forget_written()
        if self._unwritten:
            begin = time.perf_counter()
            needed = self.host.index(plan.rows, plan.positions)
            for unwritten in self._unwritten:
                if unwritten.transfer.is_made or torch.isin(unwritten.host_index, needed).any():
                    unwritten.transfer.settle()  # raises where it failed
            self.counters.exposed_io_seconds += time.perf_counter() - begin

    def _settle_all(self) -> None:
        for unwritten in self._unwritten:
            unwritten.transfer.settle()
        for row in self._staged.values():
            for transfers in row:
                for transfer in transfers:
                    transfer.settle()

    def _submit(self, lane: Lane, copy: Callable[[], object], records: int) -> AnyTransfer:
        num_bytes = records * self.footprint.record_bytes
        self.counters.bytes_moved[lane] += num_bytes
        return self.lanes.submit(lane, copy, num_bytes)

    def _wait(self, *transfers: AnyTransfer) -> float:
        """Wait for transfers in this order; the seconds it took."""
        begin = time.perf_counter()
        for transfer in transfers:
            self.lanes.wait(transfer)
        return time.perf_counter() - begin
