"""From the workload's config to the source of its prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from harness.schema import WorkloadConfig, WorkloadKind
from workloads.prompt import Phase, Prompt
from workloads.random_ids import RandomIds


class Source(Protocol):
    """Deterministic prompts for every point of a workload."""

    def prompts(self, count: int, *, concurrency: int, repeat: int, phase: Phase) -> list[Prompt]:
        """`count` different prompts for one point and phase.

        The same arguments always give the same prompts, a smaller count gives a prefix of a larger
        one, and the offload system plays no part, so every system is asked the same. Prompts of two
        points or phases come from unrelated random streams. Raises ValueError when there are not
        `count` different prompts to be had.
        """
        ...


def make_source(workload: WorkloadConfig, *, vocab_size: int, tokenizer_file: Path | None) -> Source:
    """The source `workload.kind` names; `tokenizer_file` (a `tokenizer.json`) is read by `text_files` only.

    Raises ValueError for lengths below 1, a missing tokenizer and globs that match nothing.
    """
    for key in ("input_len", "output_len"):
        if getattr(workload, key) < 1:
            raise ValueError(f"workload.{key} is {getattr(workload, key)}; it must be at least 1")
    if workload.kind is WorkloadKind.random_ids:
        return RandomIds(workload, vocab_size=vocab_size)
    if tokenizer_file is None:
        raise ValueError("workload.kind=text_files needs a model with a tokenizer; use workload.kind=random_ids")
    from workloads.text_files import TextFiles  # loads the tokenizers library

    return TextFiles(workload, vocab_size=vocab_size, tokenizer_file=tokenizer_file)
