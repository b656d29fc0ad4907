"""Trace files: what is written comes back, and a file that is damaged in any way is refused in words."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.traces import Trace, TraceError, TraceHeader, TraceWriter
from workloads.traces.layout import CHUNK_STEPS

K = 12
Steps = list[tuple[list[int], int]]  # selection and context length of each step


def header(*, ordered: bool = False, top_k: int = K) -> TraceHeader:
    return TraceHeader(model="m", selector="dsa", top_k=top_k, source="synthetic", ordered=ordered)


def drifting(rng: random.Random, steps: int, *, duplicates: bool = False) -> Steps:
    """Selections of a growing context, some shorter than K, that mostly keep what they had."""
    context, kept = rng.randint(1, 40), [0]
    out: Steps = []
    for _ in range(steps):
        pool = [p for p in kept if rng.random() < 0.7] + [rng.randrange(context) for _ in range(rng.randint(0, K))]
        chosen = list(dict.fromkeys(pool))[: rng.randint(0, K)]
        rng.shuffle(chosen)
        kept = chosen
        named = chosen + [rng.choice(chosen)] if duplicates and 0 < len(chosen) < K else chosen
        if rng.random() < 0.5:
            named = [p for p in named if p != context - 1][: K - 1] + [context - 1]  # the newest
        out.append((named, context))
        context += rng.randint(0, 2)
    return out


def rows(steps: Steps) -> tuple[np.ndarray, np.ndarray]:
    selections = np.full((len(steps), K), -1, dtype=np.int32)
    for row, (chosen, _) in zip(selections, steps, strict=True):
        row[: len(chosen)] = chosen
    return selections, np.array([context for _, context in steps], dtype=np.int32)


def write(path: Path, streams: dict[tuple[int, int], Steps], *, ordered: bool = False, cut: int = 1000) -> Path:
    with TraceWriter(path, header(ordered=ordered)) as writer:
        for (request, layer), steps in streams.items():
            selections, contexts = rows(steps)
            for start in range(0, len(steps), cut):
                writer.append(request, layer, selections[start : start + cut], contexts[start : start + cut])
    return path


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9), ordered=st.booleans(), duplicates=st.booleans(), cut=st.integers(1, 90))
def test_what_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ordered: bool, duplicates: bool, cut: int
) -> None:
    rng = random.Random(seed)
    lengths = [rng.choice([1, 2, CHUNK_STEPS, CHUNK_STEPS + 1, 150]) for _ in range(3)]
    keys = [(0, 4), (0, 1), (7, 4)]
    streams = {key: drifting(rng, n, duplicates=duplicates) for key, n in zip(keys, lengths, strict=True)}
    trace = Trace(write(tmp_path_factory.mktemp("t") / "x.trace", streams, ordered=ordered, cut=cut))
    trace.verify()
    assert trace.streams == [(0, 1), (0, 4), (7, 4)]
    assert trace.num_selections == sum(lengths)
    assert trace.num_positions == sum(len(set(chosen)) for steps in streams.values() for chosen, _ in steps)
    assert (trace.header.num_layers, trace.header.num_requests) == (2, 2)
    for key, steps in streams.items():
        stream = trace.stream(*key)
        assert stream.context_lens.tolist() == [context for _, context in steps]
        before: list[int] = []
        for step, (row, (chosen, context)) in enumerate(zip(stream.selections.tolist(), steps, strict=True)):
            chosen = list(dict.fromkeys(chosen))
            old = [] if step % CHUNK_STEPS == 0 else before
            fresh = [p for p in chosen if p not in old]
            expected = fresh + sorted(set(chosen) & set(old)) if ordered else sorted(chosen)
            assert row == expected + [-1] * (K - len(expected)), step
            before = [p for p in chosen if p != context - 1]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(tmp_path / "small.trace", {(0, 0): drifting(random.Random(1), 70), (0, 1): [([], 1), ([0], 1)]})


def test_a_trace_cut_anywhere_is_refused(small: Path) -> None:
    whole = small.read_bytes()
    for length in range(0, len(whole), 7):
        small.write_bytes(whole[:length])
        with pytest.raises(TraceError, match="truncated|not a selection trace|cannot be read as a trace"):
            Trace(small)


def test_a_trace_with_any_byte_changed_is_refused(small: Path) -> None:
    whole = small.read_bytes()
    for at in range(len(whole)):
        if 12 <= at < 16 or len(whole) - 12 <= at < len(whole) - 8:
            continue  # the two reserved words
        small.write_bytes(whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        with pytest.raises(TraceError, match=r"small\.trace"):
            Trace(small).verify()


def test_two_traces_end_to_end_are_refused(small: Path) -> None:
    small.write_bytes(small.read_bytes() * 2)
    with pytest.raises(TraceError, match="damaged: it should have"):
        Trace(small)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04" + bytes(100), b"PAR1" + bytes(60) + b"PAR1"])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"foreign.*(not a selection trace|cannot be read)"):
        Trace(path)
    with pytest.raises(TraceError, match="no such trace"):
        Trace(tmp_path / "absent")


def test_a_later_version_is_refused(small: Path) -> None:
    data = bytearray(small.read_bytes())
    data[8] = 2
    small.write_bytes(bytes(data))
    with pytest.raises(TraceError, match="format version 2"):
        Trace(small)


def test_an_unfinished_trace_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with TraceWriter(tmp_path / "x.trace", header()) as writer:
            writer.append(0, 0, *rows([([0], 1)] * 100))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ValueError, match="no selections"), TraceWriter(tmp_path / "x.trace", header()):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_a_selection_is_refused(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "x.trace", header())
    writer.append(0, 2, *rows([([0], 1)] * 5))
    with pytest.raises(ValueError, match="request 0, layer 2, step 6: position 3 is outside a context of 3"):
        writer.append(0, 2, *rows([([1], 3), ([0, 3], 3)]))
    with pytest.raises(ValueError, match="13 positions is longer than top_k=12"):
        writer.append(0, 2, np.arange(13, dtype=np.int32)[None], np.array([20]))
    with pytest.raises(ValueError, match=r"must be \[steps, width\]"):
        writer.append(0, 2, np.zeros((2, 3), np.int32), np.array([20]))
    writer.discard()


def test_overlapping_selections_take_a_fraction_of_their_size(tmp_path: Path) -> None:
    """2,048 of 100,000 positions, 30% of them new at every step: 32 bits a position as plain int32."""
    rng = np.random.default_rng(0)
    selections = np.empty((CHUNK_STEPS, 2048), dtype=np.int32)
    current = rng.choice(100_000, 2048, replace=False)
    for row in selections:
        others = np.unique(rng.integers(100_000, size=900))
        fresh = rng.permutation(others[~np.isin(others, current)])[:614]
        current = np.concatenate((rng.permutation(current)[614:], fresh))
        row[:] = current
    with TraceWriter(tmp_path / "x.trace", header(top_k=2048)) as writer:
        writer.append(0, 0, selections, np.full(CHUNK_STEPS, 100_000, dtype=np.int32))
    trace = Trace(tmp_path / "x.trace")
    assert (trace.stream(0, 0).selections == np.sort(selections, axis=1)).all()
    assert 8 * trace.size / trace.num_positions < 4.6  # the entropy of such a step is 3.6 bits a position
