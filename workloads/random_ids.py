"""Prompts of uniform random token ids, of one exact length."""

from __future__ import annotations

import math

from harness.schema import WorkloadConfig
from workloads.prompt import Phase, Prompt, make_prompt, point_rng

SPECIAL_IDS = 16
"""Ids below this are not drawn: begin, end, padding and chat markers usually live there."""
SMALL_VOCAB = 1_000
"""Up to this size every id is drawn: a toy vocabulary has no special tokens to spare."""


class RandomIds:
    """Uniform ids in [16, vocab_size), or in [0, vocab_size) when the vocabulary has 1,000 ids or fewer."""

    def __init__(self, workload: WorkloadConfig, *, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size is {vocab_size}; it must be at least 1")
        self._workload = workload
        self._low = SPECIAL_IDS if vocab_size > SMALL_VOCAB else 0
        self._high = vocab_size

    def prompts(self, count: int, *, concurrency: int, repeat: int, phase: Phase) -> list[Prompt]:
        """See `workloads.source.Source.prompts`."""
        length = self._workload.input_len
        self._refuse_too_many(count, length)
        # The length is part of the key: a shorter prompt must not be a prefix of a longer one.
        rng = point_rng("random_ids", self._workload.seed, length, concurrency, repeat, phase)
        found: dict[str, Prompt] = {}
        while len(found) < count:
            ids = rng.integers(self._low, self._high, size=length).tolist()
            prompt = make_prompt(ids, self._workload.output_len)
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
