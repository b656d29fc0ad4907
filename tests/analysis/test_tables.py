"""The summary's cells and sentences, and that it fits the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from analysis import frame, tables
from harness.records import Status


def group_of(folder: Path) -> frame.Group:
    (group,) = frame.load(folder).groups
    return group


def printed(group: frame.Group, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(tables.render(group, ["agreed"], ["the budget"]))
    return console.file.getvalue()


def test_every_series_and_concurrency_has_a_line(sweep: Path) -> None:
    table = tables.summary(group_of(sweep))
    assert len(table.rows) == 20
    assert all(len(row) == len(table.headers) for row in table.rows)
    row = next(row for row in table.rows if row[:2] == ["HiSparse, sync (B=128)", "16"])
    assert row[2:] == ["79.5", "141", "1.19", "114", "159", "16", "93.1%", "1.83", "ok"]
    full = next(row for row in table.rows if row[:2] == ["Full KV", "16"])
    assert full[7:] == ["3", "–", "–", "ok"]


def test_throughput_is_compared_with_full_kv(sweep: Path) -> None:
    found = tables.comparisons(group_of(sweep))
    assert (
        "HiSparse, sync (B=128) at 16: 1.28 times full KV at 16, 1.28 times full KV's best (62.0 tok/s at 4); "
        "running at once: 16 against 3"
    ) in found
    assert len(found) == 3


def test_the_comparison_says_where_full_kv_is_past_its_best(tmp_path: Path, synthetic: Any) -> None:
    for system, values in [("full_kv", (330.0, 182.0)), ("hisparse_sync", (200.0, 267.3))]:
        for concurrency, value in zip((2, 16), values, strict=True):
            row = synthetic.row(system, concurrency, measures={"output_throughput": value})
            synthetic.write(tmp_path, row)
    assert tables.comparisons(group_of(tmp_path)) == [
        "HiSparse, sync (B=128) at 16: 1.47 times full KV at 16, 0.81 times full KV's best (330 tok/s at 2)"
    ]


def test_a_single_repeat_is_noted_and_several_are_not(tmp_path: Path, synthetic: Any) -> None:
    synthetic.write(tmp_path, synthetic.row("full_kv", 1))
    assert tables.notes(group_of(tmp_path)) == ["one repeat: no spread is known; load.repeats=3 draws it"]
    synthetic.write(tmp_path, synthetic.row("full_kv", 1, repeat=1))
    assert tables.notes(group_of(tmp_path)) == []


def test_the_comparison_falls_back_to_the_highest_common_concurrency(tmp_path: Path, synthetic: Any) -> None:
    synthetic.sweep(tmp_path, ["hisparse_sync"])
    synthetic.write(tmp_path, synthetic.row("full_kv", 2))
    synthetic.write(tmp_path, synthetic.row("full_kv", 16, status=Status.FAILED, reason="out of memory", measures={}))
    (sentence,) = tables.comparisons(group_of(tmp_path))
    assert sentence.startswith("HiSparse, sync (B=128) at 2: 0.89 times full KV at 2, ")


def test_peaks_name_the_concurrency(sweep: Path) -> None:
    rows = {row[0]: row[1:] for row in tables.peaks(group_of(sweep)).rows}
    assert rows["Full KV"] == ["62.0", "4", "3", "–"]
    assert rows["HiSparse, sync (B=128)"] == ["79.5", "16", "16", "1.28"]


def test_points_that_are_not_ok_show_status_and_reason_but_no_number(tmp_path: Path, synthetic: Any) -> None:
    bad = synthetic.row("full_kv", 16, status=Status.INVALID, reason="the client lagged by 300 ms")
    synthetic.write(tmp_path, bad)
    synthetic.write(tmp_path, synthetic.row("full_kv", 8, status=Status.FAILED, measures={}))
    group = group_of(tmp_path)
    assert [row[2:] for row in tables.summary(group).rows] == [
        ["–"] * 8 + ["failed"],
        ["–"] * 8 + ["invalid"],
    ]
    assert tables.not_ok(group) == [
        "Full KV at 8: failed: no reason was recorded",
        "Full KV at 16: invalid: the client lagged by 300 ms",
    ]
    text = printed(group)
    assert "no point is ok" in text
    assert "the client lagged by 300 ms" in text
    assert "nan" not in text.lower()


def test_the_status_counts_repeats(tmp_path: Path, synthetic: Any) -> None:
    for repeat in range(3):
        synthetic.write(tmp_path, synthetic.row("full_kv", 2, repeat=repeat))
        status = Status.FAILED if repeat == 1 else Status.OK
        synthetic.write(tmp_path, synthetic.row("full_kv", 4, repeat=repeat, status=status))
    assert [row[-1] for row in tables.summary(group_of(tmp_path)).rows] == ["3 ok", "2/3 ok"]


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_it_fits_100_columns_and_says_the_oracle_is_invalid(tmp_path: Path, synthetic: Any, scale: float) -> None:
    for system in ("full_kv", "hisparse_prefetch", "no_io_oracle"):
        measures = synthetic.measures(system, 256)
        measures |= {"output_throughput": measures["output_throughput"] * scale}
        synthetic.write(tmp_path, synthetic.row(system, 256, measures=measures, cache_slots=4096, status=Status.OK))
    synthetic.write(
        tmp_path,
        synthetic.row("hisparse_prefetch", 512, status=Status.INFEASIBLE, reason="x" * 150, cache_slots=4096),
    )
    text = printed(group_of(tmp_path))
    assert max(map(len, text.splitlines())) <= 100
    assert "infeasible" in text
    assert "No-IO oracle*" in text
    assert "* outputs invalid" in text
    assert "…" not in text


def test_text_from_outside_is_never_markup(tmp_path: Path, synthetic: Any) -> None:
    reason = "[red]tensor[/red] of [3, 4]"
    synthetic.write(tmp_path, synthetic.row("full_kv", 4, status=Status.FAILED, reason=reason, measures={}))
    assert reason in printed(group_of(tmp_path))


def test_points_that_share_a_reason_are_one_sentence(tmp_path: Path, synthetic: Any) -> None:
    for concurrency, repeat in [(1, 0), (4, 0), (4, 1)]:
        row = synthetic.row("full_kv", concurrency, repeat=repeat, status=Status.FAILED, reason="it died", measures={})
        synthetic.write(tmp_path, row)
    assert tables.not_ok(group_of(tmp_path)) == ["Full KV at 1, 4, 4 (repeat 1): failed: it died"]


def data_rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.rstrip().endswith(("ok", "failed", "infeasible"))]


def test_a_name_with_more_words_than_rows_is_written_on_one_line(tmp_path: Path, synthetic: Any) -> None:
    for concurrency in (1, 2):
        synthetic.write(tmp_path, synthetic.row("hisparse_sync", concurrency))
    synthetic.write(tmp_path, synthetic.row("no_io_oracle", 1))
    text = printed(group_of(tmp_path), width=80)
    assert [line.split("  ")[0] for line in data_rows(text)] == ["HiSparse,", "sync (B=128)", "No-IO oracle*"]
    assert "No-IO\n" not in text and "oracle*\n" not in text


@pytest.mark.parametrize(("name", "rows", "widest", "lines"), [
    ("HiSparse, sync (B=128)", 5, 99, ["HiSparse,", "sync", "(B=128)"]),
    ("HiSparse, sync (B=128)", 2, 99, ["HiSparse,", "sync (B=128)"]),
    ("HiSparse, sync (B=128)", 1, 99, ["HiSparse, sync (B=128)"]),
    ("HiSparse, sync (B=128)", 1, 14, ["HiSparse, sync\n(B=128)"]),
    ("Full KV", 1, 9, ["Full KV"]),
])  # fmt: skip
def test_names_are_wrapped_to_their_rows(name: str, rows: int, widest: int, lines: list[str]) -> None:
    assert tables.name_lines(name, rows, widest) == lines


@given(
    st.integers(0, 10**9),
    st.sampled_from(["prefill_chunk_tokens", "device_kv_budget", "seed"]),
    st.integers(1, 8),
    st.integers(9, 60),
)
def test_a_name_is_never_wrapped_inside_a_number(value: int, key: str, rows: int, widest: int) -> None:
    name = f"HiSparse, sync (B=4,096, {key}={value})"
    lines = "\n".join(tables.name_lines(name, rows, widest)).split("\n")
    assert f"{value})" in lines[-1]
    assert any("4,096," in line for line in lines)
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")


def test_long_names_leave_an_80_column_terminal_readable(tmp_path: Path, synthetic: Any) -> None:
    for chunk in (128, 512):
        config = synthetic.config() + f"engine:\n  prefill_chunk_tokens: {chunk}\n"
        row = synthetic.row("hisparse_prefetch", 256, cell_id=f"cell-{chunk}", cache_slots=4096)
        synthetic.write(tmp_path, row, config=config)
    text = printed(group_of(tmp_path), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    table = "\n".join(f" {line}" for line in text[: text.index("peak output")].splitlines())
    assert table.count("(B=4,096,") == table.count(" 128)") + table.count(" 512)") == 2
