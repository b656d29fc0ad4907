"""A learned pooling of tokens into compressed entries (DeepSeek-V4 report, sections 2.3.1 and 2.3.2).

Every token gives a vector and, per channel, a gate. An entry is the sum of its window's vectors weighted by the
softmax of their gates over the window, normalised, its end rotated as of the window's first position. With two series
(short windows) a token has two such pairs: the second counts for its own window, the first for the next one, so
that entries overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.models.layers import Linear, Rotary, rms_norm, rotate_end


@dataclass(slots=True)
class CompressorWeights:
    value: Tensor  # [series * d, hidden]
    gate: Tensor  # [series * d, hidden]
    bias: Tensor  # [tokens, series * d], of the gates, by place in the window
    norm: Tensor  # [d]


class Compressor:
    """One layer's pooling. It keeps the inputs of the tokens whose entries are not complete in `recent`
    [rows, series * tokens, 2 * series * d], at position modulo series * tokens."""

    def __init__(self, weights: CompressorWeights, recent: Tensor, linear: Linear, rotary: Rotary, eps: float):
        self._weights, self._recent, self._linear, self._rotary, self._eps = weights, recent, linear, rotary, eps
        self.tokens, width = weights.bias.shape
        self._dim = len(weights.norm)
        self._series = width // self._dim

    def extend(self, batch: ChunkBatch, x: Tensor) -> Tensor:
        """Entries [end // tokens - start // tokens, d] that a prompt chunk completes; x [T, hidden]."""
        first, last = batch.start // self.tokens, batch.end // self.tokens
        begin = max(0, first - self._series + 1) * self.tokens
        recent = self._recent[batch.row]
        before = torch.arange(begin, batch.start, device=x.device) % len(recent)
        own = self._inputs(x)
        inputs = torch.cat((recent[before], own))
        kept = min(len(own), len(recent))
        recent[batch.positions[len(own) - kept :] % len(recent)] = own[len(own) - kept :]
        whole = inputs[: last * self.tokens - begin].view(-1, self.tokens, inputs.shape[1])
        if self._series == 2 and first == 0:
            whole = torch.cat((self._nothing(1, whole), whole))
        return self._pool(whole, torch.arange(first, last, device=x.device) * self.tokens)

    def append(self, batch: DecodeBatch, x: Tensor) -> tuple[Tensor, Tensor]:
        """Members int64 [g] of the batch whose newest token completes an entry, and those entries [g, d]."""
        size = self._recent.shape[1]
        self._recent[batch.rows, batch.positions % size] = self._inputs(x)
        done = (batch.seq_lens % self.tokens == 0).nonzero().squeeze(1)
        end = batch.seq_lens[done].long().unsqueeze(1)
        # positions of the last windows, below 0 before the first
        places = end - size + torch.arange(size, device=x.device)
        inputs = self._recent[batch.rows[done].unsqueeze(1), places % size]
        windows = inputs.view(len(done) * self._series, self.tokens, inputs.shape[2])
        absent = (places < 0)[:, :: self.tokens].flatten()
        windows = torch.where(absent.view(-1, 1, 1), self._nothing(1, windows), windows)
        return done, self._pool_each(windows, end.squeeze(1) - self.tokens)

    def _inputs(self, x: Tensor) -> Tensor:
        return torch.cat((self._linear(x, self._weights.value), self._linear(x, self._weights.gate)), dim=1)

    def _nothing(self, count: int, like: Tensor) -> Tensor:
        """Windows before the first: gates of -inf, so that they weigh nothing."""
        made = like.new_zeros(count, self.tokens, like.shape[2])
        made[:, :, like.shape[2] // 2 :] = -torch.inf
        return made

    def _pool(self, windows: Tensor, positions: Tensor) -> Tensor:
        """windows [entries + series - 1, tokens, 2 * series * d], consecutive."""
        if self._series == 1:
            return self._pool_each(windows, positions)
        pairs = torch.stack((windows[:-1], windows[1:]), dim=1)
        return self._pool_each(pairs.flatten(0, 1), positions)

    def _pool_each(self, windows: Tensor, positions: Tensor) -> Tensor:
        """windows [entries * series, tokens, 2 * series * d]: for each entry the one before it, then its own."""
        value, gate = windows.chunk(2, dim=2)
        gate = gate + self._weights.bias
        if self._series == 2:  # of the window before the first series, of the own one the second
            value, gate = self._second_of_own(value), self._second_of_own(gate)
        pooled = (value * gate.float().softmax(dim=1).to(value.dtype)).sum(1)
        entries = rms_norm(pooled, self._weights.norm, self._eps)
        return rotate_end(entries.unsqueeze(1), self._rotary.at(positions)).squeeze(1)

    def _second_of_own(self, x: Tensor) -> Tensor:
        """[entries * 2, tokens, 2 d] to [entries, 2 tokens, d]."""
        before, own = x.view(-1, 2, self.tokens, 2 * self._dim).unbind(1)
        return torch.cat((before[..., : self._dim], own[..., self._dim :]), dim=1)
