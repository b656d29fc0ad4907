"""Batch invariance (`engine.batch_invariant`): each request's selection is computed as if it were alone.

How a matrix product or a top-k rounds and breaks ties depends on its shape, and in a batch the shape depends on
the longest request and on how many there are.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harness.engine.batch import DecodeBatch
from harness.engine.selectors.base import Selector
from harness.engine.selectors.wrapper import Wrapper


class OneByOne(Wrapper):
    """Another selector, asked for one request at a time. Prefill is by request anyway."""

    def __init__(self, inner: Selector):
        super().__init__(inner)
        self._batch: DecodeBatch | None = None
        self._alone: list[DecodeBatch] = []

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        if batch is not self._batch:  # a new step: all its layers share the batches of one
            requests = zip(batch.rows.tolist(), batch.seq_lens.tolist(), strict=True)
            self._batch, self._alone = batch, [DecodeBatch.of([row], [length]) for row, length in requests]
        selections = [
            self._inner.select(layer, one, tuple(part[i : i + 1] for part in query)).squeeze(0)
            for i, one in enumerate(self._alone)
        ]
        return pad_sequence(selections, batch_first=True, padding_value=-1)
