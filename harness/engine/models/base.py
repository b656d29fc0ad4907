"""What the executor asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.kv.base import KVSide
from harness.engine.selectors.base import Selector


class Model(ABC):
    @abstractmethod
    def prefill(self, tokens: Tensor, batch: ChunkBatch, kv: KVSide, selector: Selector) -> Tensor:
        """Compute a prompt chunk (token ids int64 [end - start]); logits [vocab] of its last position."""

    @abstractmethod
    def decode(self, tokens: Tensor, batch: DecodeBatch, kv: KVSide, selector: Selector) -> Tensor:
        """Compute one new token for each request (token ids int64 [n]); logits [n, vocab]."""
