"""Prompts of uniform random token ids, of exact lengths."""

from __future__ import annotations

import math

from harness.schema import WorkloadConfig
from workloads.lengths import length_drawer
from workloads.prompt import Phase, Prompt, make_prompt, point_rng

SPECIAL_IDS = 16
"""Ids below this are not drawn: begin, end, padding and chat markers usually live there."""
SMALL_VOCAB = 1_000
"""Up to this size every id is drawn: a toy vocabulary has no special tokens to spare."""


def id_range(vocab_size: int) -> tuple[int, int]:
    """Ids that are drawn: [16, vocab_size), or [0, vocab_size) when the vocabulary has 1,000 ids or fewer."""
    if vocab_size < 1:
        raise ValueError(f"vocab_size is {vocab_size}; it must be at least 1")
    return (SPECIAL_IDS if vocab_size > SMALL_VOCAB else 0), vocab_size


class RandomIds:
    """Uniform ids of `id_range`."""

    def __init__(self, workload: WorkloadConfig, *, vocab_size: int) -> None:
        self._workload = workload
        self._low, self._high = id_range(vocab_size)
        self._draw_lengths = length_drawer(workload)

    def prompts(self, count: int, *, concurrency: int, repeat: int, phase: Phase) -> list[Prompt]:
        """See `workloads.source.Source.prompts`."""
        # The length is part of the key: a shorter prompt must not be a prefix of a longer one.
        key = (self._workload.seed, self._workload.input_len, concurrency, repeat, phase)
        lengths_rng, rng = point_rng("lengths", *key), point_rng("random_ids", *key)
        lengths = [self._draw_lengths(lengths_rng) for _ in range(count)]
        self._refuse_too_many(count, min((length for length, _ in lengths), default=1))
        found: dict[str, Prompt] = {}
        for input_len, output_len in lengths:
            before = len(found)
            while len(found) == before:
                prompt = make_prompt(rng.integers(self._low, self._high, size=input_len).tolist(), output_len)
                found.setdefault(prompt.sha, prompt)
        return list(found.values())

    def _refuse_too_many(self, count: int, length: int) -> None:
        # Half of all possible prompts, so that drawing until they differ ends soon.
        choices = self._high - self._low
        if count > 1 and math.log(2 * count) > length * math.log(choices):
            raise ValueError(
                f"{count} different prompts of {length} tokens cannot be drawn from {choices} ids; "
                "raise workload.input_len or send fewer requests"
            )
