"""The one interface between the model and where its KV lives.

Systems differ only behind it: every one hands attention the same records for the same selection, so outputs
are bit-identical and a comparison isolates placement. A request occupies a *row* from `admit` to `release`.

A position here is that of a record. Most models have a record per token; one with compressed entries has a record
per `Footprint.tokens_per_record` tokens, and the executor hands over batches that count records
(`DecodeBatch.in_records`): a row may have none yet, and gets a new one only in some steps (`batch.growing`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.device import CPU
from harness.engine.footprint import Footprint, ceil_div, record_width
from harness.engine.kv.lanes import Lane
from harness.schema import Config


@dataclass(slots=True)
class KVCounters:
    """Running totals since the server started."""

    lookups: int = 0  # selected positions resolved against a device cache
    misses: int = 0  # of those, fetched from the host pool, on demand or as an anchor's misses replayed
    exposed_io_seconds: float = 0.0  # decode waiting for records
    prefill_io_seconds: float = 0.0  # prefill waiting for records
    timed: bool = True
    """False on a GPU, where copies are ordered among the kernels and the host waits for none: the seconds stay 0 and
    mean nothing. What they cost is the step's time over the oracle's."""
    bytes_moved: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))

    @property
    def h2d_bytes(self) -> int:
        return sum(count for lane, count in self.bytes_moved.items() if lane.to_device)

    @property
    def d2h_bytes(self) -> int:
        return sum(count for lane, count in self.bytes_moved.items() if not lane.to_device)


class KVSide(ABC):
    """Places the records of all running requests.

    Records are [..., W] in the model's dtype. Every method is called from the engine's one thread.
    """

    totals: Tensor | None = None
    """On a GPU, int64 [t]: what decode steps have counted on the device; `set_totals` takes the values."""

    def __init__(self, config: Config, device: torch.device = CPU):
        self.device = device
        self.footprint = Footprint(config)
        self.width = record_width(config.model)
        self.dtype = getattr(torch, config.model.dtype.value)
        self.num_layers = self.footprint.num_layers
        self.page_size = config.engine.page_size
        self.counters = KVCounters()
        smallest = self.footprint.request(1).device
        budget = int(config.engine.device_kv_budget)
        self.num_rows = max(1, min(config.engine.max_running_requests, budget // smallest))
        self.state_rows = self.num_rows + (device != CPU)  # of page tables and selection state: see DecodeBatch
        self.pages_per_row = ceil_div(self.footprint.num_records(config.context_len), self.page_size)
        self._free_rows = list(range(self.num_rows))[::-1]
        self._held_rows: set[int] = set()

    @abstractmethod
    def admit(self, positions: int) -> int:
        """Reserve a row for a request of that many positions, prompt and output; returns the row.

        The scheduler's ledger has made sure that it fits; running out here is a bug (AssertionError).
        """

    @abstractmethod
    def grow(self, row: int, positions: int) -> None:
        """Have room in the row for that many positions in all; nothing where it has it. As `admit`, the ledger has
        made sure that it fits."""

    @abstractmethod
    def release(self, row: int) -> None:
        """Free a row and all it holds, at any stage of its life."""

    @abstractmethod
    def begin_chunk(self, batch: ChunkBatch) -> None:
        """A prefill chunk starts: `stage` and `prefix` of every layer refer to it."""

    @abstractmethod
    def stage(self, layer: int, records: Tensor) -> None:
        """Keep the chunk's records [end - start, W] of one layer."""

    @abstractmethod
    def prefix(self, layer: int) -> Tensor:
        """Records [end, W] of all positions up to the chunk's end, for its attention."""

    @abstractmethod
    def finish_prefill(self, row: int, length: int) -> None:
        """The prompt is complete: make the row ready to decode."""

    @abstractmethod
    def begin_decode(self, batch: DecodeBatch) -> None:
        """A decode step starts: `append` and `resolve` of every layer refer to it."""

    @abstractmethod
    def append(self, layer: int, records: Tensor) -> None:
        """Keep the newest records [n, W] of one layer, and write them through where there is a host pool."""

    @abstractmethod
    def resolve(self, layer: int, selection: Tensor) -> Tensor:
        """Selected positions int32 [n, k] (-1: none) to device slots int32 [n, k], fetching what is missing."""

    def resolve_shared(self, layer: int, anchor: int, selection: Tensor) -> Tensor:
        """As `resolve`, for a layer that uses the selection of layer `anchor` (`ModelConfig.anchor_of`), which was
        resolved earlier in this step. A system that replays the anchor's plan overrides this; here the shared
        layer's cache is resolved on its own, which gives the same records.
        """
        return self.resolve(layer, selection)

    @abstractmethod
    def device_records(self, layer: int) -> Tensor:
        """One layer's records on the device [..., W], where attention reads those of `resolve`'s slots."""

    @abstractmethod
    def gather(self, layer: int, slots: Tensor) -> Tensor:
        """Records [n, k, W] at device slots; at -1 any record, which attention masks."""

    def finish_decode(self) -> None:  # noqa: B027 (most systems have nothing to do)
        """The last layer of a decode step has resolved its selection."""

    def set_totals(self, values: list[int]) -> None:
        """The values of `totals`, which the executor reads with each step's tokens: put them into the counters."""
        raise AssertionError("this KV side counts as it goes")

    def check_integrity(self) -> None:
        """Raise AssertionError unless everything held has one owner and all copies of a record agree.

        Between steps, with requests at any stage; reads every record it compares, so it is for tests.
        """
        assert not self._held_rows & set(self._free_rows), "a row is both held and free"
        rows = sorted([*self._held_rows, *self._free_rows])
        assert rows == list(range(self.num_rows)), f"rows were lost or given twice: {rows}"

    def check_idle(self) -> None:
        """Raise AssertionError unless everything was given back (called when no request is left)."""
        assert not self._held_rows, f"rows {sorted(self._held_rows)} are still held"
        assert sorted(self._free_rows) == list(range(self.num_rows)), "rows were lost"

    def _take_row(self) -> int:
        assert self._free_rows, "more requests admitted than rows"
        row = self._free_rows.pop()
        self._held_rows.add(row)
        return row

    def _give_row(self, row: int) -> None:
        self._held_rows.remove(row)
        self._free_rows.append(row)
