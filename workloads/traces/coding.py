"""A chunk of a trace: the selections of consecutive steps of one (request, layer) as differences, then deflated.

Steps overlap by 70% and more (HiSparse, section 4.3), so a step is coded as two lists: of the step before's
positions in ascending order, one bit each, whether it stays; then the positions that are new. New positions are gaps
in ascending order, or, in an ordered trace, zigzag differences in the selector's order. The newest position of a step
(its context length - 1) is new again in the next: it lies in a slot of its own, beside the cache, and may miss then.

Before deflation a chunk is: int32 steps, int32 kept bits, int32 new positions; int32 [steps] context lengths; int32
[steps] new positions a step; the kept bits of all steps together (most significant first, padded to a byte); the
new positions' codes as uint32, split into four planes of bytes, lowest first.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


def encode(selections: Int32, context_lens: Int32, *, ordered: bool) -> tuple[bytes, int]:
    """The chunk's bytes, and how many positions it holds.

    selections: [steps, width], -1 where shorter; every position in [0, context length of its step). A position named
    twice in one step counts once.
    """
    per_step = np.zeros(len(selections), dtype="<i4")
    stays: list[NDArray[np.bool_]] = []
    codes: list[Int32] = []
    longest = int(context_lens.max(initial=0))
    before, now = np.zeros(longest, dtype=bool), np.zeros(longest, dtype=bool)  # members of two steps' selections
    previous = np.empty(0, dtype=np.int32)
    held = 0
    for step, (selection, context_len) in enumerate(zip(selections, context_lens.tolist(), strict=True)):
        named = selection[selection >= 0]
        ascending = np.sort(named)
        if len(ascending) > 1 and (ascending[1:] == ascending[:-1]).any():
            ascending, first = np.unique(named, return_index=True)
            named = named[np.sort(first)]
        now[ascending] = True
        if step:
            stays.append(now[previous])
        candidates = named if ordered else ascending
        fresh = candidates[~before[candidates]]
        per_step[step] = len(fresh)
        codes.append(np.diff(fresh, prepend=np.int32(0)))
        before[previous] = False
        held += len(ascending)
        if len(ascending) and ascending[-1] == context_len - 1:
            ascending = _without_newest(ascending, now)
        before, now, previous = now, before, ascending
    return _deflate(context_lens, per_step, _joined(stays, bool), _joined(codes, np.int32), ordered), held


def _without_newest(ascending: Int32, members: NDArray[np.bool_]) -> Int32:
    members[ascending[-1]] = False
    return ascending[:-1]


def _deflate(
    context_lens: Int32, per_step: Int32, stays: NDArray[np.bool_], differences: Int32, ordered: bool
) -> bytes:
    codes = _zigzag(differences) if ordered else differences.astype(np.uint32)
    counts = np.array([len(per_step), len(stays), len(codes)], dtype="<i4")
    planes = codes.astype("<u4").view(np.uint8).reshape(-1, 4).T
    parts = (counts, context_lens.astype("<i4"), per_step, np.packbits(stays), planes)
    deflate = zlib.compressobj(6, zlib.DEFLATED, 15, 9, zlib.Z_RLE)  # bits and gaps hold runs, no longer repeats
    return deflate.compress(b"".join(part.tobytes() for part in parts)) + deflate.flush()


def _joined(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def decode(data: bytes | memoryview, *, width: int, ordered: bool) -> tuple[Int32, Int32]:
    """selections int32 [steps, width], -1 where shorter, and context lengths int32 [steps].

    Raises ValueError (or zlib.error) for bytes that `encode` cannot have made.
    """
    plain = zlib.decompress(data)
    steps, num_bits, num_codes = np.frombuffer(plain, "<i4", 3)
    context_lens, per_step = np.frombuffer(plain, "<i4", 2 * steps, 12).reshape(2, steps)
    begin = 12 + 8 * int(steps)
    bits = np.frombuffer(plain, np.uint8, (num_bits + 7) // 8, begin)
    stays = np.unpackbits(bits, count=num_bits).view(bool)
    planes = np.frombuffer(plain, np.uint8, 4 * num_codes, begin + len(bits)).reshape(4, -1)
    codes = np.ascontiguousarray(planes.T).view("<u4").reshape(-1)
    gaps = _unzigzag(codes) if ordered else codes.astype(np.int64)
    return _replay(per_step, context_lens, stays, gaps, width, ordered), context_lens.astype(np.int32)


def _zigzag(values: Int32) -> NDArray[np.uint32]:
    return ((values.astype(np.int64) << 1) ^ (values.astype(np.int64) >> 63)).astype(np.uint32)


def _unzigzag(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    wide = codes.astype(np.int64)
    return (wide >> 1) ^ -(wide & 1)


def _replay(
    per_step: Int32, context_lens: Int32, stays: NDArray[np.bool_], gaps: NDArray[np.int64], width: int, ordered: bool
) -> Int32:
    selections = np.full((len(per_step), width), -1, dtype=np.int32)
    previous = np.empty(0, dtype=np.int32)
    bit = code = 0
    for step, count in enumerate(per_step.tolist()):
        kept = previous[stays[bit : bit + len(previous)]] if step else previous
        bit += len(previous)
        new = np.cumsum(gaps[code : code + count]).astype(np.int32)
        code += count
        whole = np.concatenate((new, kept))
        previous = np.sort(whole)
        selections[step, : len(whole)] = whole if ordered else previous
        if len(previous) and previous[-1] == context_lens[step] - 1:
            previous = previous[:-1]
    return selections
