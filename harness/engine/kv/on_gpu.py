"""The decode step of the offload systems on a GPU: the same records in the same slots, and nothing the host must know.

What a selection lacks stays on the device, so what is launched depends on shapes alone and a CUDA graph can capture it.
Misses are fetched by the computation's own stream, right after their match. Each layer's new records are written
through on a lane of their own beside the layers that follow, and the step ends when they have arrived: a graph cannot
leave copies behind for the next one to wait for. What is counted is added up on the device (`totals`).
"""

from __future__ import annotations

from functools import partial

import hisparse_kernels as kernels
import torch
from hisparse_kernels import Plan
from torch import Tensor

from harness.engine.batch import DecodeBatch
from harness.engine.kv.fetch_all import FetchAll
from harness.engine.kv.hierarchy import Hierarchy
from harness.engine.kv.hisparse import HiSparse
from harness.engine.kv.lanes import AnyTransfer, Lane
from harness.schema import Config

COUNTED = (Lane.demand, Lane.prefetch, Lane.write_through)
"""Whose records `totals` counts, behind lookups and misses."""


class OnGPU(Hierarchy):
    """What the systems share; to be named before the system's own class."""

    def __init__(self, config: Config, device: torch.device):
        super().__init__(config, device)
        self.counters.timed = False
        self.totals: Tensor = torch.zeros(2 + len(COUNTED), dtype=torch.int64, device=device)
        self._in_step: list[AnyTransfer] = []  # submitted in this step

    @property
    def _table(self) -> Tensor:
        """The page table as the kernels take it: without the row that fills batches up, which caches have not."""
        return self.host.page_table[: self.num_rows]

    def set_totals(self, values: list[int]) -> None:
        counters = self.counters
        counters.lookups, counters.misses = values[:2]
        for lane, records in zip(COUNTED, values[2:], strict=True):
            counters.bytes_moved[lane] = records * self.footprint.record_bytes

    def write_through(self, layer: int, records: Tensor) -> None:
        self._send(Lane.write_through, partial(kernels.stage, records, self.host.records[layer], self._newest))

    def finish_decode(self) -> None:
        for transfer in self._in_step:
            self.lanes.wait(transfer)
        self._in_step.clear()
        written = (self._batch.growing >= 0).sum() * self.num_layers
        self.totals += torch.stack((*self._counted(), written))

    def _counted(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of this step, int64 []: lookups, misses, records fetched on demand, records fetched ahead."""
        raise NotImplementedError

    def _send(self, lane: Lane, copy: partial[None]) -> AnyTransfer:
        """Submit a copy of as many records as the device knows."""
        transfer = self.lanes.submit(lane, copy, 0)
        self._in_step.append(transfer)
        return transfer


class FetchAllOnGPU(OnGPU, FetchAll):
    """Every selected position is an entry of a plan; those that are not to be fetched are at -1, which moves
    nothing."""

    def begin_decode(self, batch: DecodeBatch) -> None:
        super().begin_decode(batch)
        self._found = torch.zeros(2, dtype=torch.int64, device=self.device)  # chosen, and of those moved

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        batch, shape = self._batch, selection.shape
        chosen = (selection >= 0) & (batch.rows < self.num_rows).unsqueeze(1)
        newest = selection == (batch.seq_lens - 1).unsqueeze(1)
        moved = chosen & ~newest
        rows = batch.rows.unsqueeze(1).expand(shape)
        place = torch.arange(shape[1], device=self.device).expand(shape)
        positions = torch.where(moved, selection, -1).long()
        every = torch.full(shape[:1], shape[1], dtype=torch.int64, device=self.device)
        plan = Plan(rows.flatten(), place.flatten(), positions.flatten(), every)
        kernels.replay(plan, self.cache[layer], self.host.records[layer], self._table, self.page_size)
        self._found += torch.stack((chosen.sum(), moved.sum()))
        flat = rows * (self.num_slots + 1) + torch.where(newest, self.num_slots, place)
        return torch.where(chosen, flat, -1).to(torch.int32)

    def _counted(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lookups, misses = self._found
        return lookups, misses, misses, torch.zeros_like(misses)


class HiSparseOnGPU(OnGPU, HiSparse):
    def __init__(self, config: Config, device: torch.device):
        super().__init__(config, device)
        states = len(self.slot_positions)
        users = [self._state.count(state) for state in range(states)]
        self._users = torch.tensor(users, device=device)  # layers that use each slot state

    def begin_decode(self, batch: DecodeBatch) -> None:
        super().begin_decode(batch)
        self._step: tuple[Tensor, Tensor] | None = None

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        slots, _ = self._resolve(layer, selection, record=False)
        return slots

    def _resolve(self, layer: int, selection: Tensor, *, record: bool) -> tuple[Tensor, Plan]:
        """Slots of a selection whose misses are on their way, before anything that is computed later; with `record`
        the plan lists them."""
        out = self._out(layer, selection, record=record)
        state = selection, self._batch.rows, self._batch.seq_lens, *self._layers[layer]
        if not self._moves_bytes:
            return kernels.match(*state, checked=False, record=record, out=out)
        pools = self.cache[layer], self.host.records[layer], self._table, self.page_size
        return kernels.resolve(*state, *pools, checked=False, record=record, out=out)

    def _out(self, layer: int, selection: Tensor, *, record: bool) -> tuple[Tensor, Plan]:
        n, k = selection.shape
        if self._step is None:  # the first layer of a step; all have selections of one width
            states = len(self._users)
            slots = torch.empty(states, n, k, dtype=torch.int32, device=self.device)
            self._step = slots, torch.empty(states, n, dtype=torch.int64, device=self.device)
        at = self._state[layer]
        return self._step[0][at], self._plan(n * k if record else 0, self._step[1][at])

    def _plan(self, capacity: int, per_row: Tensor) -> Plan:
        lists = torch.empty(3, capacity, dtype=torch.int64, device=self.device)
        return Plan(lists[0], lists[1], lists[2], per_row)

    def _counted(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert self._step is not None, "no layer has resolved"
        slots, per_row = self._step
        found, missing = (slots >= 0).sum((1, 2)), per_row.sum(1)
        misses = (missing * self._users).sum()
        demand = missing.sum() * self._moves_bytes
        return (found * self._users).sum(), misses, demand, misses * self._moves_bytes - demand
