"""Synthetic selection streams: top-k over scores that drift, with a few parameters that set the locality.

The score of a position in one layer is

    static_weight * N + slow_weight * AR1(slow_rho) + fast_weight * AR1(fast_rho) + noise_weight * noise

where N is drawn once (how much the position matters at all), each AR1 is an autoregressive process of unit variance
(x' = rho x + sqrt(1 - rho^2) e: what matters for a while, and what matters for a few steps), and the noise is fresh
at every step. All are independent between positions, layers and requests. A step selects the k positions of highest
score among those of the context, which grows by one position a step. Positions that leave come back the sooner the
more of the score is static or noise, which is what tells replacement policies apart.

e is the sum of two uniform numbers, the noise of four, each scaled to unit variance: cheap, and sums of many of them
are as good as normal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.schema import LocalityConfig, WorkloadConfig
from workloads.prompt import point_rng

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
UInt32 = NDArray[np.uint32]
BLOCK_STEPS = 64
_SOURCE = Path(__file__).parent / "csrc" / "synthetic.cpp"
_BYTE_VARIANCE = (256**2 - 1) / 12
_Motion = tuple[float, float, float, float, float]


@functools.cache
def _native() -> Any:
    """The compiled `select`, None where it cannot be compiled: numpy then takes its place, several times slower."""
    from hisparse_kernels.build import BuildUnavailable, load_beside  # imports torch

    try:
        return load_beside("hisparse_synthetic", _SOURCE)
    except BuildUnavailable:
        return None


class SyntheticStream:
    """The selections of one (request, layer), in blocks of (selections int32 [steps, k], context lengths int32
    [steps]), ascending, -1 padded while the context is shorter than k. Iterating again gives the same.

    The first step's context is prompt_len + 1: it holds the token that prefill gave.
    """

    def __init__(
        self,
        locality: LocalityConfig,
        *,
        prompt_len: int,
        steps: int,
        top_k: int,
        seed: int = 0,
        request: int = 0,
        layer: int = 0,
    ) -> None:
        self._locality, self._prompt_len, self._steps, self._top_k = locality, prompt_len, steps, top_k
        self._key = ("synthetic", seed, request, layer)

    @classmethod
    def of(cls, work: WorkloadConfig, top_k: int, request: int, layer: int) -> SyntheticStream:
        """One sequence of a workload `synthetic_selections`."""
        lengths = {"prompt_len": work.input_len, "steps": work.output_len}
        return cls(work.locality, **lengths, top_k=top_k, seed=work.seed, request=request, layer=layer)

    def __iter__(self) -> Iterator[tuple[Int32, Int32]]:
        state, motion = self._initial(), _motion(self._locality)
        native = _native()
        select = native.select if native else _select
        for start in range(0, self._steps, BLOCK_STEPS):
            steps = min(BLOCK_STEPS, self._steps - start)
            first = self._prompt_len + 1 + start
            out = np.empty((steps, self._top_k), dtype=np.int32)
            select(*state, first, *motion, out)
            yield out, np.arange(first, first + steps, dtype=np.int32)

    def _initial(self) -> tuple[Float32, Float32, Float32, UInt32]:
        """static part, slow part, fast part and the state of the random numbers of every position there will be."""
        rng, n, weights = point_rng(*self._key), self._prompt_len + self._steps, self._locality
        parts = []
        for weight in (weights.static_weight, weights.slow_weight, weights.fast_weight):
            parts.append(rng.standard_normal(n, dtype=np.float32) * np.float32(weight))
        return parts[0], parts[1], parts[2], rng.integers(1, 1 << 32, n, dtype=np.uint32)


def _motion(locality: LocalityConfig) -> _Motion:
    """What the parts are multiplied by and what the sums of two or four centred bytes are."""

    def move(weight: float, rho: float) -> float:
        return weight * math.sqrt((1 - rho * rho) / (2 * _BYTE_VARIANCE))

    return (
        locality.slow_rho,
        move(locality.slow_weight, locality.slow_rho),
        locality.fast_rho,
        move(locality.fast_weight, locality.fast_rho),
        locality.noise_weight / math.sqrt(4 * _BYTE_VARIANCE),
    )


def _select(
    fixed: Float32,
    slow: Float32,
    fast: Float32,
    random: UInt32,
    first: int,
    slow_keep: float,
    slow_move: float,
    fast_keep: float,
    fast_move: float,
    noise: float,
    out: Int32,
) -> None:
    """csrc/synthetic.cpp in numpy, to the bit."""
    for step, row in enumerate(out):
        n = first + step
        a = _xorshift(random[:n])
        b = _xorshift(a)
        random[:n] = b
        s = ((a & 255) + (a >> 8 & 255)).astype(np.int32) - 255
        f = ((a >> 16 & 255) + (a >> 24)).astype(np.int32) - 255
        z = ((b & 255) + (b >> 8 & 255) + (b >> 16 & 255) + (b >> 24)).astype(np.int32) - 510
        slow[:n] = slow[:n] * np.float32(slow_keep) + s.astype(np.float32) * np.float32(slow_move)
        fast[:n] = fast[:n] * np.float32(fast_keep) + f.astype(np.float32) * np.float32(fast_move)
        score = fixed[:n] + slow[:n] + fast[:n] + z.astype(np.float32) * np.float32(noise)
        best = np.argsort(-score, kind="stable")[: len(row)]  # stable: of equal scores the lower position
        row[: len(best)] = np.sort(best)
        row[len(best) :] = -1


def _xorshift(x: UInt32) -> UInt32:
    x = x ^ (x << np.uint32(13))
    x = x ^ (x >> np.uint32(17))
    return x ^ (x << np.uint32(5))
