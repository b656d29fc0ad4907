"""What one forward pass works on, shared by model, selector and KV side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.engine.device import CPU, upload


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """Prompt positions [start, end) of the request in cache row `row`."""

    row: int
    start: int
    end: int
    positions: Tensor  # int64 [end - start]

    @classmethod
    def of(cls, row: int, start: int, length: int, device: torch.device = CPU) -> ChunkBatch:
        return cls(row, start, start + length, torch.arange(start, start + length, device=device))

    def in_records(self, tokens: int) -> ChunkBatch:
        """The same chunk counted in records of that many tokens: those that it completes, possibly none."""
        if tokens == 1:
            return self
        first = self.start // tokens
        return ChunkBatch.of(self.row, first, self.end // tokens - first, self.positions.device)


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One new position for each of n requests, at seq_lens - 1. Counted in records (`in_records`), a sequence may
    still be empty (seq_len 0, position -1), and only the `growing` rows get a record in this step.

    A batch that a CUDA graph runs is filled up with members of the row behind all rows, at position 0: selection
    state has that row, page tables too, and device caches take it for padding."""

    rows: Tensor  # int64 [n], distinct but for those that fill up
    seq_lens: Tensor  # int32 [n], the new position included
    positions: Tensor  # int64 [n]
    max_len: int  # longest of seq_lens
    beyond: Tensor  # bool [n, max_len]: positions a row does not have
    growing: Tensor  # int64 [n]: `rows` where the row gets a new record in this step, -1 elsewhere
    all_grow: bool  # all that fill nothing up, as always where a record is a token

    @classmethod
    def of(cls, rows: list[int], seq_lens: list[int], device: torch.device = CPU) -> DecodeBatch:
        lengths = upload(seq_lens, device, torch.int32)
        longest = max(seq_lens)
        beyond = torch.arange(longest, device=device) >= lengths.unsqueeze(1)
        all_rows = upload(rows, device)
        return cls(all_rows, lengths, lengths.long() - 1, longest, beyond, all_rows, True)

    @classmethod
    def padded(cls, rows: Tensor, seq_lens: Tensor, max_len: int, num_rows: int) -> DecodeBatch:
        """Of tensors on a device, int64 and int32 [n], without asking it: max_len is at least the longest; a row of
        `num_rows` fills up."""
        beyond = torch.arange(max_len, device=rows.device) >= seq_lens.unsqueeze(1)
        growing = torch.where(rows < num_rows, rows, -1)
        return cls(rows, seq_lens, seq_lens.long() - 1, max_len, beyond, growing, True)

    def in_records(self, tokens: int) -> DecodeBatch:
        """The same step counted in records of that many tokens each."""
        if tokens == 1:
            return self
        lengths = self.seq_lens // tokens
        longest = self.max_len // tokens
        beyond = torch.arange(longest, device=lengths.device) >= lengths.unsqueeze(1)
        growing = torch.where(self.seq_lens % tokens == 0, self.growing, -1)
        return DecodeBatch(self.rows, lengths, lengths.long() - 1, longest, beyond, growing, False)
