"""The benchmark's traces: read whole, repeated in time, refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.simulation.bench import DAY_REQUESTS, drawn, main, read_trace


def test_a_trace_repeats_until_there_are_enough(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 2}\n' * 2)
    times, asked = read_trace(file, count=5)
    assert times == [0.0, 0.0, 1.0, 1.0, 2.0]
    assert [(a.prompt_len, a.output_len) for a in asked] == [(5, 2)] * 5


def test_a_foreign_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 2}\n{"a": 1}\n')
    assert main(["--trace", str(file)]) == 2
    assert "line 2 is no request" in capsys.readouterr().err


def test_drawn_lengths_have_the_traces_means() -> None:
    times, asked = drawn()
    assert len(times) == len(asked) == DAY_REQUESTS
    assert times == sorted(times)
    assert sum(a.prompt_len for a in asked) / len(asked) == pytest.approx(13_000, rel=0.2)  # 15,325, capped
