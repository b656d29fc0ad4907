"""Layer-wise prefetch on a GPU (HiSparse, section 3.5): plans replayed on the prefetch lane's stream.

An anchor's demand fetch comes first on its own stream, then its plan goes to the shared layers' caches, in the order of
the layers; each of those comes after its own copy only.
"""

from __future__ import annotations

from functools import partial

import hisparse_kernels as kernels
import torch
from hisparse_kernels import Plan
from torch import Tensor

from harness.engine.batch import DecodeBatch
from harness.engine.kv.lanes import AnyTransfer, Lane
from harness.engine.kv.on_gpu import HiSparseOnGPU
from harness.engine.kv.sharing import followers
from harness.schema import Config


class _Ahead(HiSparseOnGPU):
    def _replay_ahead(self, plan: Plan, layer: int) -> AnyTransfer:
        pools = self.cache[layer], self.host.records[layer], self._table, self.page_size
        return self._send(Lane.prefetch, partial(kernels.replay, plan, *pools))


class ExactPrefetchOnGPU(_Ahead):
    """As `ExactPrefetch`."""

    def __init__(self, config: Config, device: torch.device):
        super().__init__(config, device)
        self._shared = followers(self.owners)
        self._slots: dict[int, Tensor] = {}  # by anchor, of this step
        self._ahead: dict[int, AnyTransfer] = {}  # by shared layer, of this step
        self._moved: dict[int, Tensor] = {}  # by anchor: where the last newest record goes, int64 [n], -1 for nowhere

    def begin_decode(self, batch: DecodeBatch) -> None:
        super().begin_decode(batch)
        previous = batch.seq_lens - 2
        self._fits = (batch.growing >= 0) & (previous >= 0) & (previous < self.num_slots)
        self._real = batch.rows.clamp(max=self.num_rows - 1)
        self._begin = self._real * (self.num_slots + 1)  # flat, each row's first slot

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        shared = self._shared[layer]
        slots, plan = self._resolve(layer, selection, record=bool(shared) and self._moves_bytes)
        self._slots[layer] = slots
        if self._moves_bytes:
            self._ahead |= {at: self._replay_ahead(plan, at) for at in shared}
        return slots

    def resolve_shared(self, layer: int, anchor: int, selection: Tensor) -> Tensor:
        if self.owners[layer] == layer:
            return self.resolve(layer, selection)
        if self._moves_bytes:
            self.lanes.wait(self._ahead.pop(layer))
        return self._slots[anchor]

    def _append(self, layer: int, records: Tensor) -> None:
        anchor = self.owners[layer]
        if layer == anchor:
            if self._shared[layer]:  # the kernel moves the last newest record to the oldest slot
                oldest = self._layers[layer][1][self._real, 0]
                self._moved[layer] = torch.where(self._fits, self._begin + oldest, -1)
            super()._append(layer, records)
            return
        flat = self.cache[layer].view(-1, self.width)
        kernels.stage(flat.index_select(0, self._begin + self.num_slots), flat, self._moved[anchor])
        kernels.stage(records, flat, self._newest_slots)


class SpeculativePrefetchOnGPU(_Ahead):
    """As `SpeculativePrefetch`."""

    def begin_decode(self, batch: DecodeBatch) -> None:
        super().begin_decode(batch)
        self._next_lens = batch.seq_lens - (batch.growing >= 0).to(torch.int32)  # the next layer has not appended yet
        self._ahead: AnyTransfer | None = None  # of the layer that comes next
        self._hinted: list[Tensor] = []  # of this step, int64 [n]: records that hints fetched

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        if self._ahead is not None:
            self.lanes.wait(self._ahead)  # first: a miss may take the slot of a wrong hint
        slots, _ = self._resolve(layer, selection, record=False)
        self._ahead = self._hint(layer + 1, selection) if layer + 1 < self.num_layers else None
        return slots

    def _hint(self, layer: int, selection: Tensor) -> AnyTransfer:
        """Fetch into a later layer's cache what it lacks of a selection."""
        per_row = torch.empty(len(selection), dtype=torch.int64, device=self.device)
        out = torch.empty_like(selection), self._plan(selection.numel(), per_row)
        state = selection, self._batch.rows, self._next_lens, *self._layers[layer]
        # the newest position is beyond the next layer's: unchecked, it counts as none
        _, plan = kernels.match(*state, checked=False, out=out)
        self._hinted.append(per_row)
        return self._replay_ahead(plan, layer)

    def _counted(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lookups, misses, demand, ahead = super()._counted()
        return lookups, misses, demand, ahead + sum(per_row.sum() for per_row in self._hinted)
