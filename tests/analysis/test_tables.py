"""The summary's cells and sentences, and that it fits the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from analysis import frame, tables
from harness.records import Status


def group_of(folder: Path) -> frame.Group:
    (group,) = frame.load(folder).groups
    return group


def printed(group: frame.Group, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(tables.render(group, ["agreed"]))
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
    assert "HiSparse, sync (B=128) at 16: 1.28 times full KV (running at once: 16 against 3)" in found
    assert len(found) == 3


def test_the_comparison_falls_back_to_the_highest_common_concurrency(tmp_path: Path, synthetic: Any) -> None:
    synthetic.sweep(tmp_path, ["hisparse_sync"])
    synthetic.write(tmp_path, synthetic.row("full_kv", 2))
    synthetic.write(tmp_path, synthetic.row("full_kv", 16, status=Status.FAILED, reason="out of memory", measures={}))
    (sentence,) = tables.comparisons(group_of(tmp_path))
    assert sentence.startswith("HiSparse, sync (B=128) at 2: 0.89 times full KV")


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
