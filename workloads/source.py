"""From the workload's config to the source of its prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from harness.schema import WorkloadConfig, WorkloadKind
from workloads.jsonfile import data_file
from workloads.lengths import length_drawer
from workloads.prompt import Phase, Prompt
from workloads.random_ids import RandomIds
from workloads.replayed import Replayed
from workloads.request_traces import read_trace


class Source(Protocol):
    """Deterministic prompts for every point of a workload."""

    def prompts(self, count: int, *, concurrency: int, repeat: int, phase: Phase) -> list[Prompt]:
        """`count` different prompts for one point and phase.

        Each has lengths of its own and, where it is a trace's, its arrival time. The same arguments always
        give the same prompts, a smaller count gives a prefix of a larger one, and the offload system plays no
        part, so every system is asked the same. Prompts of two points or phases come from unrelated random
        streams. Only a trace whose hash ids are equal gives equal prompts, and only within a point. Raises
        ValueError when there are not `count` different prompts to be had.
        """
        ...


def check_files(workload: WorkloadConfig) -> None:
    """Raise ValueError where a file the workload reads is missing or, if it is read in a moment, malformed."""
    if workload.kind.is_trace:
        read_trace(data_file(workload.files[0]), workload.kind)
    elif workload.kind.reads_files and not data_file(workload.files[0]).is_file():  # may be gigabytes
        raise ValueError(f"workload.files: {workload.files[0]}: no such file")
    if workload.length_file:
        length_drawer(workload)


def make_source(workload: WorkloadConfig, *, vocab_size: int, tokenizer_file: Path | None) -> Source:
    """The source `workload.kind` names; `tokenizer_file` (a `tokenizer.json`) is read by those that are text.

    Raises ValueError for lengths below 1, a missing tokenizer, globs that match nothing and malformed files.
    """
    for key in ("input_len", "output_len"):
        if getattr(workload, key) < 1:
            raise ValueError(f"workload.{key} is {getattr(workload, key)}; it must be at least 1")
    if workload.kind is WorkloadKind.random_ids:
        return RandomIds(workload, vocab_size=vocab_size)
    if workload.kind.is_trace:
        return Replayed(workload, vocab_size=vocab_size)
    if tokenizer_file is None:
        raise ValueError(
            f"workload.kind={workload.kind.value} needs a model with a tokenizer; use workload.kind=random_ids"
        )
    return _text_source(workload, vocab_size, tokenizer_file)


def _text_source(workload: WorkloadConfig, vocab_size: int, tokenizer_file: Path) -> Source:
    from workloads.conversations import Conversations  # these load the tokenizers library
    from workloads.encoder import Encoder
    from workloads.longbench import LongBench
    from workloads.text_files import TextFiles

    encoder = Encoder(tokenizer_file, vocab_size=vocab_size)
    if workload.kind is WorkloadKind.sharegpt:
        return Conversations(workload, encoder=encoder)
    if workload.kind is WorkloadKind.longbench_v2:
        return LongBench(workload, encoder=encoder)
    return TextFiles(workload, encoder=encoder)
