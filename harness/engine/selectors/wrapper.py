"""A selector around another: everything is the inner one's until a subclass says otherwise."""

from __future__ import annotations

from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.selectors.base import Selector


class Wrapper(Selector):
    def __init__(self, inner: Selector):
        self._inner = inner
        self.reads_index, self.state, self.resident = inner.reads_index, inner.state, inner.resident

    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        self._inner.extend(layer, batch, keys)

    def append(self, layer: int, batch: DecodeBatch, keys: Tensor) -> None:
        self._inner.append(layer, batch, keys)

    def prefill_mask(self, layer: int, batch: ChunkBatch, query: tuple[Tensor, ...]) -> Tensor | None:
        return self._inner.prefill_mask(layer, batch, query)

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        return self._inner.select(layer, batch, query)
