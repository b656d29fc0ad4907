"""The interface of a selector: compact device-resident state in, selected positions out (section 2.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.selectors.resident import Resident


class Selector(ABC):
    """State lives per row and layer and is overwritten when a row is given to another request.

    `keys` and `query` are the model's attention keys ([m, kv_heads, d], for MLA its records [m, W]) and queries
    ([n, heads, d], for MLA absorbed ones [n, heads, W]); for a selector that `reads_index` they are index keys
    [m, d] and (index queries [n, h, d], head weights [n, h]).
    """

    reads_index: bool = False
    resident: Resident | None = None
    """What a csa model keeps on the device beside the records."""
    state: tuple[Tensor, ...] = ()
    """Each [layers, rows, ...]: entry `row` of all of them is what a request takes along when it changes rows."""

    @abstractmethod
    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        """Add a prefill chunk's keys."""

    @abstractmethod
    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        """Add the newest position of each row."""

    @abstractmethod
    def prefill_mask(self, layer: int, batch: ChunkBatch, query: tuple[Tensor, ...]) -> Tensor | None:
        """Which positions each of the chunk's queries attends to, bool [end - start, end], causal included;
        None where prefill attends to everything before it."""

    @abstractmethod
    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        """Positions int32 [n, width] for the decode step, width <= k, padded with -1."""
