"""One cache of one (request, layer), replayed block by block in C++."""

from __future__ import annotations

import functools
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.replay.policies import POLICIES, ReplayConfig

Int32Array = NDArray[np.int32]
_SOURCE = Path(__file__).parent / "csrc" / "replay.cpp"


@functools.cache
def native() -> Any:
    """The compiled module (some 15 seconds the first time). Raises hisparse_kernels.build.BuildUnavailable."""
    from hisparse_kernels.build import load_beside  # imports torch

    return load_beside("hisparse_replay", _SOURCE)


class Lane:
    """The cache of one config; `lane` is the sequence's number, which only sets the random policy's stream apart."""

    def __init__(self, config: ReplayConfig, lane: int = 0):
        self.config = config
        self._step_length = 0  # context of the last step's first row
        self._row_length = 0  # and of the last row
        self._rows = 0
        self._kept: list[tuple[Int32Array, Int32Array]] = []  # belady's, which needs the whole sequence
        self._handle: int | None = None
        if config.policy != "belady":
            seed = (config.seed * 0x9E3779B97F4A7C15 + lane) & (2**63 - 1)
            code = POLICIES[config.policy].code
            self._handle = native().create(
                code, config.cache_slots, config.tokens, config.tail, seed, *config.arguments
            )
            weakref.finalize(self, native().destroy, self._handle)

    def feed(self, positions: Int32Array, seq_lens: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Replay the next rows of the sequence.

        positions int32 [rows, k], negative for none, any order, duplicates count once; seq_lens int32 [rows], the
        context length of each row's query, itself included: position seq_len - 1 is the newest. It must not fall
        from step to step, and within a step of several tokens it must rise.
        Returns per row int32 [rows] the distinct positions selected and how many of them missed. Belady's come from
        `finish`, and these are empty. Raises ValueError, with nothing changed.
        """
        positions, seq_lens = self._checked(positions, seq_lens)
        if self._handle is None:
            self._kept.append((positions, seq_lens))
            return np.empty(0, np.int32), np.empty(0, np.int32)
        selected, misses = np.empty_like(seq_lens), np.empty_like(seq_lens)
        native().feed(self._handle, positions, seq_lens, selected, misses)
        return selected, misses

    def finish(self) -> tuple[Int32Array, Int32Array]:
        """What `feed` has not returned yet, at the end of the sequence."""
        if self._rows % self.config.tokens:
            raise ValueError(f"{self._rows} rows are not whole steps of {self.config.tokens} tokens")
        if not self._kept:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        positions, seq_lens = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
        self._kept.clear()
        selected, misses = np.empty_like(seq_lens), np.empty_like(seq_lens)
        config = self.config
        native().belady(positions, seq_lens, config.cache_slots, config.tokens, config.tail, selected, misses)
        return selected, misses

    def contents(self) -> set[int]:
        """The positions that the next row could hit. Not for belady."""
        assert self._handle is not None, "belady holds nothing before its sequence ends"
        out = np.empty(max(self.config.cache_slots, self._row_length), np.int32)
        return set(out[: native().contents(self._handle, out)].tolist())

    def _checked(self, positions: Int32Array, seq_lens: Int32Array) -> tuple[Int32Array, Int32Array]:
        positions, seq_lens = _int32("positions", positions, 2), _int32("seq_lens", seq_lens, 1)
        rows, k = positions.shape
        tokens = self.config.tokens
        if len(seq_lens) != rows:
            raise ValueError(f"positions has {rows} rows, seq_lens {len(seq_lens)}")
        if k * tokens > self.config.cache_slots and self.config.policy != "staging":
            what = f"k={k}" if tokens == 1 else f"{tokens} tokens of k={k}"
            raise ValueError(f"{what} selected positions do not fit cache_slots={self.config.cache_slots}")
        if not rows:
            return positions, seq_lens
        outside = native().first_outside(positions, seq_lens)
        if outside >= 0:
            row, j = divmod(outside, k)
            raise ValueError(f"positions[{row}, {j}] = {positions[row, j]} is not below seq_len {seq_lens[row]}")
        self._check_lengths(seq_lens)
        self._rows += rows
        return positions, seq_lens

    def _check_lengths(self, seq_lens: Int32Array) -> None:
        tokens = self.config.tokens
        begins = (self._rows + np.arange(len(seq_lens))) % tokens == 0
        before = np.concatenate([[self._row_length], seq_lens[:-1]])
        starts = np.concatenate([[self._step_length], seq_lens[begins]])
        if (seq_lens < 1).any() or (np.diff(starts) < 0).any() or (seq_lens[~begins] <= before[~begins]).any():
            rule = "fall" if tokens == 1 else "fall from step to step and must rise within a step"
            raise ValueError(f"seq_lens must be at least 1 and must not {rule}")
        self._step_length, self._row_length = int(starts[-1]), int(seq_lens[-1])


def _int32(name: str, array: Int32Array, dims: int) -> Int32Array:
    """Contiguous and writable, as DLPack wants it. Raises ValueError."""
    if array.dtype != np.int32 or array.ndim != dims:
        raise ValueError(f"{name} is {array.dtype} {list(array.shape)}; needs int32 with {dims} dimensions")
    return np.require(array, requirements=["C", "W"])
