"""How long each request of a point is: one fixed pair, or pairs drawn from a distribution or from a file.

Files of pairs are a CSV with a header or JSONL; the columns may be called as in the Azure traces
(ContextTokens, GeneratedTokens), as in Mooncake's (input_length, output_length), or input_len, output_len.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from harness.schema import LengthKind, WorkloadConfig
from workloads.jsonfile import Malformed, csv_rows, data_file, json_lines, whole_number

NAMES = (("input_len", "output_len"), ("input_length", "output_length"), ("ContextTokens", "GeneratedTokens"))
Draw = Callable[[np.random.Generator], tuple[int, int]]

_TRIES = 10_000  # draws above the limit before we give up


def length_drawer(workload: WorkloadConfig) -> Draw:
    """A function that draws one (input, output) pair, tokens, from a random stream.

    Raises ValueError for a file that cannot be read (with the line) or holds no pair within the limits.
    """
    kind = workload.lengths
    if kind is LengthKind.fixed:
        return lambda rng: (workload.input_len, workload.output_len)
    if kind is LengthKind.empirical:
        return _from_file(workload)
    draw = _uniform if kind is LengthKind.uniform else _lognormal
    sides = (
        (workload.input_len, workload.input_spread, workload.max_input_len),
        (workload.output_len, workload.output_spread, workload.max_output_len),
    )

    def pair(rng: np.random.Generator) -> tuple[int, int]:
        first, second = (draw(rng, *side) for side in sides)
        return first, second

    return pair


def scaled(length: int, scale: float) -> int:
    """A length multiplied by `scale`, at least 1."""
    return max(1, round(length * scale))


def read_pairs(path: Path) -> Iterator[tuple[int, int]]:
    """(input, output) lengths of a file. Raises ValueError with file and line for one that is malformed."""
    if path.suffix.lower() == ".csv":
        with open_text(path) as file:
            rows = csv_rows(path, file)
            names = _names(list(next(rows)[1]), path, 1)
            for line, row in rows:
                yield _pair(row, names, path, line)
        return
    for number, record in json_lines(path):
        yield _pair(record, _names(list(record), path, number), path, number)


def open_text(path: Path) -> TextIO:
    """A text file, opened. Raises ValueError naming it where it cannot be."""
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a file that exists") from error


def _from_file(workload: WorkloadConfig) -> Draw:
    path = data_file(workload.length_file or "")
    limit_in, limit_out = workload.longest
    pairs = [(scaled(i, workload.length_scale), scaled(o, workload.length_scale)) for i, o in read_pairs(path)]
    within = [pair for pair in pairs if pair[0] <= limit_in and pair[1] <= limit_out]
    if not within:
        raise ValueError(
            f"{path}: none of its {len(pairs)} pairs of lengths is within {limit_in} and {limit_out} tokens; "
            "raise workload.max_input_len and max_output_len or lower workload.length_scale"
        )
    return lambda rng: within[int(rng.integers(len(within)))]


def _uniform(rng: np.random.Generator, mean: int, spread: float, limit: int | None) -> int:
    low, high = max(1, round(mean * (1 - spread))), round(mean * (1 + spread))
    return int(rng.integers(low, high + 1))


def _lognormal(rng: np.random.Generator, mean: int, spread: float, limit: int | None) -> int:
    """Of the given mean and standard deviation (spread x mean) before what is above `limit` is drawn again."""
    if spread == 0:
        return mean
    variance = math.log1p(spread**2)
    for _ in range(_TRIES):
        length = max(1, round(math.exp(math.log(mean) - variance / 2 + math.sqrt(variance) * rng.standard_normal())))
        if limit is None or length <= limit:
            return length
    raise ValueError(f"no length of mean {mean} is at most {limit}: raise the limit or lower the spread")


def _names(have: Sequence[str], path: Path, line: int) -> tuple[str, str]:
    for names in NAMES:
        if set(names) <= set(have):
            return names
    known = ", ".join(" and ".join(names) for names in NAMES)
    raise Malformed(path, line, f"has no pair of lengths; it needs {known}")


def _pair(row: dict[str, object], names: tuple[str, str], path: Path, line: int) -> tuple[int, int]:
    first, second = (whole_number(row.get(name), name, path, line, least=1) for name in names)
    return first, second
