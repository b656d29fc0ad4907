"""What one forward pass works on, shared by model, selector and KV side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """Prompt positions [start, end) of the request in cache row `row`."""

    row: int
    start: int
    end: int
    positions: Tensor  # int64 [end - start]

    @classmethod
    def of(cls, row: int, start: int, length: int) -> ChunkBatch:
        return cls(row, start, start + length, torch.arange(start, start + length))


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One new position for each of n requests, at seq_lens - 1."""

    rows: Tensor  # int64 [n], distinct
    seq_lens: Tensor  # int32 [n], the new position included
    positions: Tensor  # int64 [n]
    max_len: int  # longest of seq_lens
    beyond: Tensor  # bool [n, max_len]: positions a row does not have

    @classmethod
    def of(cls, rows: list[int], seq_lens: list[int]) -> DecodeBatch:
        lengths = torch.tensor(seq_lens, dtype=torch.int32)
        longest = max(seq_lens)
        beyond = torch.arange(longest) >= lengths.unsqueeze(1)
        return cls(torch.tensor(rows), lengths, lengths.long() - 1, longest, beyond)
