"""What is sent: prompts, lengths, selections."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from harness.schema.kinds import LengthKind, WorkloadKind


@dataclass(kw_only=True, slots=True)
class LocalityConfig:
    """How a synthetic selection stream keeps and changes what it selects; see `workloads.traces.synthetic`.

    Weights are standard deviations of the parts of a position's score.
    """

    static_weight: float = 1.0
    """What never changes."""
    slow_weight: float = 0.43
    slow_rho: float = 0.95
    """Correlation of the slow part with itself one step later."""
    fast_weight: float = 0.27
    fast_rho: float = 0.6
    noise_weight: float = 0.2
    """Fresh at every step."""


@dataclass(kw_only=True, slots=True)
class WorkloadConfig:
    kind: WorkloadKind = MISSING
    name: str = MISSING
    input_len: int = MISSING
    """Prompt tokens: of every request (`lengths=fixed`), their mean (`uniform`, `lognormal`), or `max_input_len`
    where a file gives the lengths. Result rows carry this number."""
    output_len: int = MISSING
    """Tokens to generate, likewise; EOS is ignored unless `stop_on_eos`."""
    lengths: LengthKind = LengthKind.fixed
    """How the requests' lengths are drawn; `random_ids` and `text_files` only."""
    input_spread: float = 0.0
    """uniform: half the range as a share of the mean; lognormal: the standard deviation as a share of the mean."""
    output_spread: float = 0.0
    max_input_len: int | None = None
    """Longest prompt of lognormal lengths (longer draws are drawn again) and of files (longer requests are left out;
    LongBench's are cut in their middle)."""
    max_output_len: int | None = None
    length_file: str | None = None
    """empirical: where pairs of lengths are drawn from, a CSV or JSONL file; see `workloads.lengths`."""
    length_scale: float = 1.0
    """Lengths of a trace or of `length_file` are multiplied by this: the shape of a large trace on a small model."""
    stop_on_eos: bool = False
    temperature: float = 0.0
    seed: int = 0
    miss_rate: float | None = None
    """selections only: share of each selection that is not in the device cache, 0 to 1. The context is `input_len`
    positions, and `output_len` decode steps are timed."""
    locality: LocalityConfig = field(default_factory=LocalityConfig)
    """synthetic_selections only. The context grows from `input_len` by one position in each of `output_len` steps."""
    trace: str | None = None
    """selection_trace only: a file that `trace.record` or `python -m workloads` made."""
    files: list[str] = field(default_factory=list)
    """text_files: globs of files to cut prompts from; empty: the Python standard library's sources. sharegpt,
    longbench_v2, mooncake and azure: the one file to read."""

    @property
    def longest(self) -> tuple[int, int]:
        """The most prompt tokens and the most output tokens a request can have."""
        if self.lengths is LengthKind.uniform:
            return round(self.input_len * (1 + self.input_spread)), round(self.output_len * (1 + self.output_spread))
        return self.max_input_len or self.input_len, self.max_output_len or self.output_len
