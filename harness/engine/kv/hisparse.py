"""HiSparse: B slots per row and layer kept by recency, misses fetched before attention (`hisparse_sync`);
with the copies left out, a no-IO oracle, whose outputs are invalid."""

from __future__ import annotations

import hisparse_kernels as kernels
import torch
from hisparse_kernels import Plan
from torch import Tensor

from harness.engine.batch import DecodeBatch
from harness.engine.device import CPU
from harness.engine.kv.hierarchy import Hierarchy
from harness.engine.kv.lanes import Lane
from harness.engine.kv.sharing import slot_owners
from harness.schema import ColdStart, Config, OffloadSystem


class HiSparse(Hierarchy):
    """Slot state is kept once for all layers that follow the same one (`owners`): here, each for itself."""

    def __init__(self, config: Config, device: torch.device = CPU):
        super().__init__(config, device)
        self.owners = slot_owners(config)
        kept = sorted(set(self.owners))
        self._state = [kept.index(owner) for owner in self.owners]  # layer -> its index in the slot state
        shape = (len(kept), self.num_rows, self.num_slots)
        self.slot_positions = torch.empty(shape, dtype=torch.int32, device=device)  # written by load_row at admission
        self.lru_order = torch.empty(shape, dtype=torch.int32, device=device)
        self._layers = [(self.slot_positions[state], self.lru_order[state]) for state in self._state]  # views
        self._moves_bytes = config.offload.system is not OffloadSystem.no_io_oracle
        if not self._moves_bytes:  # what a miss leaves unwritten is read: it must be numbers, and memory of its own
            self.cache.zero_()
        self._starts_empty = config.offload.cold_start is ColdStart.empty
        self._looked_up: list[tuple[int, Tensor]] = []  # of this step: (layers that use it, selection [n, k])
        self._lengths = torch.zeros(self.state_rows, dtype=torch.int32, device=device)  # of decoding rows; 0 before

    def admit(self, positions: int) -> int:
        row = super().admit(positions)
        self._lengths[row] = 0
        return row

    def finish_prefill(self, row: int, length: int) -> None:
        """Begin the caches with the last B positions (section 3.3, admission), or with the newest alone.

        A prompt too short for a record of several tokens begins like one of a single record: nothing in the B slots.
        """
        super().finish_prefill(row, length)
        length = max(1, length)
        resident = 0 if self._starts_empty else min(length - 1, self.num_slots)
        source = self._host_index(row, length - 1 - resident, length)

        def copy() -> None:
            records = torch.empty(resident + 1, self.width, dtype=self.dtype, device=self.device)
            for layer, state in enumerate(self._state):
                kernels.load_row(
                    row,
                    1 if self._starts_empty else length,
                    self.slot_positions[state],
                    self.lru_order[state],
                    self.cache[layer],
                    kernels.load(self.host.records[layer], source, records),
                )

        load = self._submit(Lane.load, copy, (resident + 1) * self.num_layers)
        self.counters.prefill_io_seconds += self._wait(load)
        self._lengths[row] = length

    def begin_decode(self, batch: DecodeBatch) -> None:
        super().begin_decode(batch)
        self._lengths[batch.rows] = batch.seq_lens

    def append(self, layer: int, records: Tensor) -> None:
        self._append(layer, records)
        self.write_through(layer, records)

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        slots, plan = self._match(layer, selection)
        if len(plan.rows) and self._moves_bytes:
            self._settle_written(plan)
            self.counters.exposed_io_seconds += self._wait(self._fetch(Lane.demand, layer, plan))
        self._resolved(layer)
        return slots

    def finish_decode(self) -> None:
        """Count what was looked up, all layers at once."""
        layers, selections = zip(*self._looked_up, strict=True)
        counts = torch.stack(selections).flatten(1).ge(0).sum(1).tolist()
        self.counters.lookups += sum(times * count for times, count in zip(layers, counts, strict=True))
        self._looked_up.clear()

    def check_integrity(self) -> None:
        super().check_integrity()
        decoding = [row for row in sorted(self._held_rows) if self._lengths[row] > 0]
        for row in decoding:
            for layer, state in enumerate(self._state):
                where = f"row {row}, layer {layer}"
                order, held = self.lru_order[state, row], self.slot_positions[state, row]
                assert order.sort().values.tolist() == list(range(self.num_slots)), where
                self._check_records(row, layer, held, where)

    def _check_records(self, row: int, layer: int, held: Tensor, where: str) -> None:
        """A row's slots in one layer: each holds its own position, and the host's bytes of it."""
        newest = int(self._lengths[row]) - 1
        slots = (held >= 0).nonzero().squeeze(1)
        positions = held[slots].long()
        assert len(positions.unique()) == len(positions), f"{where}: a position sits in two slots"
        assert not len(positions) or int(positions.max()) < newest, f"{where}: a slot holds what is not there yet"
        if self._moves_bytes:
            slots = torch.cat((slots.cpu(), torch.tensor([self.num_slots])))
            positions = torch.cat((positions.cpu(), torch.tensor([newest])))
            source = self.host.index(torch.tensor([row], device=self.device), positions.to(self.device))
            here = self.cache[layer, row, slots.to(self.device)].cpu()
            there = self.host.records[layer][source.cpu()]
            wrong = (here.view(torch.uint8) != there.view(torch.uint8)).any(dim=1)
            assert not wrong.any(), f"{where}: positions {positions[wrong].tolist()} differ from the host's"

    def _append(self, layer: int, records: Tensor) -> None:
        """Put each growing row's newest record [n, W] into its reserved slot."""
        kernels.append(
            records,
            self._batch.growing,
            self._batch.seq_lens,
            *self._layers[layer],
            self.cache[layer],
        )

    def _match(self, layer: int, selection: Tensor, layers: int = 1) -> tuple[Tensor, Plan]:
        """Slots of a selection and its misses, counted for as many layers as use them."""
        slots, plan = kernels.match(
            selection,
            self._batch.rows,
            self._batch.seq_lens,
            *self._layers[layer],
            checked=False,  # selectors are of this project; the tests run them through the check
        )
        self._looked_up.append((layers, selection))
        self.counters.misses += layers * len(plan.rows)
        return slots, plan
