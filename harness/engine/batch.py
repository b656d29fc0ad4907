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

    def in_records(self, tokens: int) -> ChunkBatch:
        """The same chunk counted in records of that many tokens: those that it completes, possibly none."""
        if tokens == 1:
            return self
        first = self.start // tokens
        return ChunkBatch.of(self.row, first, self.end // tokens - first)


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One new position for each of n requests, at seq_lens - 1. Counted in records (`in_records`), a sequence may
    still be empty (seq_len 0, position -1), and only the `growing` rows get a record in this step."""

    rows: Tensor  # int64 [n], distinct
    seq_lens: Tensor  # int32 [n], the new position included
    positions: Tensor  # int64 [n]
    max_len: int  # longest of seq_lens
    beyond: Tensor  # bool [n, max_len]: positions a row does not have
    growing: Tensor  # int64 [n]: `rows` where the row gets a new record in this step, -1 elsewhere

    @classmethod
    def of(cls, rows: list[int], seq_lens: list[int]) -> DecodeBatch:
        lengths = torch.tensor(seq_lens, dtype=torch.int32)
        longest = max(seq_lens)
        beyond = torch.arange(longest) >= lengths.unsqueeze(1)
        all_rows = torch.tensor(rows)
        return cls(all_rows, lengths, lengths.long() - 1, longest, beyond, all_rows)

    def in_records(self, tokens: int) -> DecodeBatch:
        """The same step counted in records of that many tokens each."""
        if tokens == 1:
            return self
        lengths = self.seq_lens // tokens
        longest = self.max_len // tokens
        beyond = torch.arange(longest) >= lengths.unsqueeze(1)
        growing = torch.where(self.seq_lens % tokens == 0, self.rows, -1)
        return DecodeBatch(self.rows, lengths, lengths.long() - 1, longest, beyond, growing)
