"""Layer-wise prefetch: misses are fetched before the layer that has them runs (HiSparse, section 3.5).

Exact, where layers share a selection: the anchor's miss plan is replayed into the shared layers' caches on a lane of
its own while the layers between compute. Speculative, for the others: a layer's selection is a hint for the next.
"""

from __future__ import annotations

import hisparse_kernels as kernels
import torch
from torch import Tensor

from harness.engine.batch import DecodeBatch
from harness.engine.device import CPU
from harness.engine.kv.hisparse import HiSparse
from harness.engine.kv.lanes import AnyTransfer, Lane
from harness.engine.kv.sharing import followers
from harness.schema import Config


class ExactPrefetch(HiSparse):
    """A shared layer's cache follows its anchor's slot by slot, so that it has no slot state of its own: it uses the
    anchor's slots, waits for its own transfer and resolves nothing. A model that shares no selections has only
    anchors, and runs as `HiSparse` does. With the oracle nothing is moved."""

    def __init__(self, config: Config, device: torch.device = CPU):
        super().__init__(config, device)
        self._shared = followers(self.owners)
        self._slots: dict[int, Tensor] = {}  # by anchor, of this step
        self._ahead: dict[int, AnyTransfer] = {}  # by shared layer, of this step
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}  # by anchor: (rows, slot the last newest record moved to)

    def begin_decode(self, batch: DecodeBatch) -> None:
        super().begin_decode(batch)
        previous = batch.seq_lens - 2
        fits = (batch.growing >= 0) & (previous >= 0) & (previous < self.num_slots)
        self._fitting = batch.rows[fits]

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        shared = self._shared[layer]
        slots, plan = self._match(layer, selection, 1 + len(shared))
        self._slots[layer] = slots
        if len(plan.rows) and self._moves_bytes:
            self._settle_written(plan)
            demand = self._fetch(Lane.demand, layer, plan)  # first on the link: this layer waits for it now
            self._ahead |= {at: self._fetch(Lane.prefetch, at, plan) for at in shared}
            self.counters.exposed_io_seconds += self._wait(demand)
        self._resolved(layer)
        return slots

    def resolve_shared(self, layer: int, anchor: int, selection: Tensor) -> Tensor:
        if self.owners[layer] == layer:
            return self.resolve(layer, selection)
        ahead = self._ahead.pop(layer, None)
        if ahead is not None:
            self.counters.exposed_io_seconds += self._wait(ahead)
        self._resolved(layer)
        return self._slots[anchor]

    def _append(self, layer: int, records: Tensor) -> None:
        anchor = self.owners[layer]
        if layer == anchor:
            if len(self._fitting):  # the kernel moves the last newest record to the oldest slot
                oldest = self.lru_order[self._state[layer], self._fitting, 0].long()
                self._moved[layer] = self._fitting, oldest
            super()._append(layer, records)
            return
        cache = self.cache[layer]
        if len(self._fitting):
            rows, slots = self._moved[anchor]
            cache[rows, slots] = cache[rows, self.num_slots]
        kernels.stage(records, cache.view(-1, self.width), self._newest_slots)


class SpeculativePrefetch(HiSparse):
    """After each layer the next one's cache fetches what this one selected. A wrong hint costs a transfer and a slot,
    never correctness: the next layer resolves its own selection, once what was hinted has arrived."""

    def __init__(self, config: Config, device: torch.device = CPU):
        super().__init__(config, device)
        self._ahead: AnyTransfer | None = None  # of the layer that comes next

    def begin_decode(self, batch: DecodeBatch) -> None:
        super().begin_decode(batch)
        self._next_lens = batch.seq_lens - (batch.growing >= 0).to(torch.int32)  # the next layer has not appended yet

    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        slots, plan = self._match(layer, selection)
        needed = [] if self._ahead is None else [self._ahead]  # first: a miss may take the slot of a wrong hint
        if len(plan.rows):
            self._settle_written(plan)
            needed.append(self._fetch(Lane.demand, layer, plan))
        self._ahead = self._hint(layer + 1, selection) if layer + 1 < self.num_layers else None
        self.counters.exposed_io_seconds += self._wait(*needed)
        self._resolved(layer)
        return slots

    def _hint(self, layer: int, selection: Tensor) -> AnyTransfer | None:
        """Fetch into a later layer's cache what it lacks of a selection; None where it lacks nothing."""
        _, plan = kernels.match(
            selection,
            self._batch.rows,
            self._next_lens,
            self.slot_positions[layer],
            self.lru_order[layer],
            checked=False,  # the newest position is beyond the next layer's: it counts as none
        )
        if not len(plan.rows):
            return None
        self._settle_written(plan)
        return self._fetch(Lane.prefetch, layer, plan)
