"""Random small selection streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st


@dataclass
class Small:
    """A stream and a cache that it fits."""

    positions: np.ndarray  # int32 [rows, k]
    seq_lens: np.ndarray  # int32 [rows]
    slots: int
    tokens: int
    tail: bool

    @property
    def lists(self) -> tuple[list[list[int]], list[int]]:
        return self.positions.tolist(), self.seq_lens.tolist()


def make(seed: int, *, length: int, k: int, slots: int, steps: int, tokens: int = 1, tail: bool = True) -> Small:
    """Selections that drift: half of each comes from the one before, with -1 and duplicates among them.

    In half of the streams most rows are ascending, as a generator or an unordered trace gives them.
    """
    g = np.random.default_rng(seed)
    rows, lens, before = [], [], np.zeros(0, np.int64)
    for _ in range(steps):
        for token in range(tokens):
            n = length + token
            fresh = g.integers(-1, n, k) if g.random() < 0.7 else n - 1 - g.integers(0, min(k, n), k)
            kept = g.permutation(before)[: int(g.integers(0, k + 1))]
            row = g.permutation(np.concatenate([kept, fresh])[:k])
            if seed % 2 and g.random() < 0.8:  # padding last
                row = np.sort(row.astype(np.uint32)).astype(np.int32)
            before = row[row < n]
            rows.append(row)
            lens.append(n)
        length += int(g.integers(1, tokens + 1))
        before = before[before < length]
    return Small(np.array(rows, np.int32).reshape(-1, k), np.array(lens, np.int32), slots, tokens, tail)


@st.composite
def small_streams(draw, max_tokens: int = 1):
    k, tokens = draw(st.integers(1, 8)), draw(st.integers(1, max_tokens))
    return make(
        draw(st.integers(0, 2**31)),
        length=draw(st.integers(1, 40)),
        k=k,
        slots=k * tokens + draw(st.integers(0, 12)),
        steps=draw(st.integers(1, 25)),
        tokens=tokens,
        tail=draw(st.booleans()),
    )
