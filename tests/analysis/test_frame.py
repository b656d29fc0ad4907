"""Rows to groups, series and aggregated points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import frame
from harness.records import Status


def test_one_group_with_a_series_per_system(sweep: Path) -> None:
    experiment = frame.load(sweep)
    (group,) = experiment.groups
    assert (experiment.name, experiment.description, group.slug) == ("demo", "A <synthetic> sweep.", "")
    assert [series.words for series in group.series] == [
        "Full KV (baseline)",
        "Fetch all",
        "HiSparse, sync (B=128)",
        "No-IO oracle (outputs invalid)",
    ]
    assert group.concurrencies == [1, 2, 4, 8, 16]
    assert "k=64" in group.title
    assert "1,024 tokens in, 64 out" in group.title


def test_repeats_become_mean_and_extremes(tmp_path: Path, synthetic: Any) -> None:
    for repeat, value in enumerate([10.0, 20.0, 60.0]):
        row = synthetic.row("full_kv", 4, repeat=repeat, measures={"output_throughput": value})
        synthetic.write(tmp_path, row)
    synthetic.write(tmp_path, synthetic.row("full_kv", 4, repeat=3, status=Status.INVALID, reason="client lagged"))
    (group,) = frame.load(tmp_path).groups
    (point,) = group.points.to_dict("records")
    assert point["output_throughput"] == 30.0
    assert (point["output_throughput_min"], point["output_throughput_max"]) == (10.0, 60.0)
    assert point["repeats"] == 3
    assert len(group.not_ok) == 1


def test_the_extremes_of_equal_repeats_enclose_their_mean() -> None:
    """As of a simulation; an error bar of less than nothing is refused by what draws it."""
    values = np.random.default_rng(0).uniform(100, 1000, 200)
    rows = [
        {"series": 0, "concurrency": number, "status": "ok", **dict.fromkeys(frame.MEASURES, value)}
        for number, value in enumerate(values)
        for _ in range(3)
    ]
    points = frame.aggregate(pd.DataFrame(rows))
    for measure in frame.MEASURES:
        assert (points[f"{measure}_min"] <= points[measure]).all()
        assert (points[measure] <= points[f"{measure}_max"]).all()
    assert points["output_throughput"].to_numpy() == pytest.approx(values)


def test_a_line_leaves_out_points_without_the_measure(tmp_path: Path, synthetic: Any) -> None:
    synthetic.write(tmp_path, synthetic.row("full_kv", 8))
    synthetic.write(tmp_path, synthetic.row("full_kv", 2, measures={"output_throughput": 5.0}))
    (group,) = frame.load(tmp_path).groups
    assert group.line(0, "output_throughput")["concurrency"].tolist() == [2, 8]
    assert group.line(0, "output_throughput", "mean_ttft_ms")["concurrency"].tolist() == [8]


def test_groups_are_named_by_what_differs(tmp_path: Path, synthetic: Any) -> None:
    for length in (1024, 4096):
        for system in ("full_kv", "hisparse_sync"):
            cell = f"{system}-{length}"
            synthetic.write(tmp_path, synthetic.row(system, 4, input_len=length, cell_id=cell))
    groups = frame.load(tmp_path).groups
    assert [group.slug for group in groups] == ["input_len-1024", "input_len-4096"]
    assert [len(group.series) for group in groups] == [2, 2]


def test_dense_and_sparse_rows_are_never_compared(tmp_path: Path, synthetic: Any) -> None:
    synthetic.write(tmp_path, synthetic.row("full_kv", 4))
    synthetic.write(tmp_path, synthetic.row("full_kv", 4, top_k=None, cell_id="dense"))
    assert [group.key["top_k"] for group in frame.load(tmp_path).groups] == [64, None]


def test_every_b_is_a_line_of_its_own_and_named(tmp_path: Path, synthetic: Any) -> None:
    for b in (256, 128):
        for system in ("fetch_all", "hisparse_sync"):
            synthetic.write(tmp_path, synthetic.row(system, 4, cache_slots=b, cell_id=f"{system}-{b}"))
    (group,) = frame.load(tmp_path).groups
    words = [series.words for series in group.series]
    assert words == [
        "Fetch all (B=128)",
        "Fetch all (B=256)",
        "HiSparse, sync (B=128)",
        "HiSparse, sync (B=256)",
    ]
    assert len({series.colour for series in group.series}) == 4


def test_many_b_of_one_system_can_be_told_apart(slots_sweep: Path) -> None:
    (group,) = frame.load(slots_sweep).groups
    mine = [series for series in group.series if series.system == "hisparse_sync"]
    assert len(mine) == len({s.colour for s in mine}) == len({s.marker for s in mine}) == 6
    assert mine[0].colour == "#0072B2"


def test_cells_that_differ_in_another_config_key_are_not_averaged(tmp_path: Path, synthetic: Any) -> None:
    for chunk in (128, 512):
        for system in ("full_kv", "hisparse_sync"):
            config = f"engine:\n  prefill_chunk_tokens: {chunk}\n  page_size: 16\n"
            row = synthetic.row(system, 4, cell_id=f"{system}-{chunk}")
            synthetic.write(tmp_path, row, config=config)
    (group,) = frame.load(tmp_path).groups
    assert [series.words for series in group.series] == [
        "Full KV (baseline, prefill_chunk_tokens=128)",
        "Full KV (baseline, prefill_chunk_tokens=512)",
        "HiSparse, sync (B=128, prefill_chunk_tokens=128)",
        "HiSparse, sync (B=128, prefill_chunk_tokens=512)",
    ]
    assert [group.baseline_of(i) for i in range(4)] == [0, 1, 0, 1]


def test_a_folder_without_points_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no points; name the folder of one experiment"):
        frame.load(tmp_path)


def test_a_folder_may_be_a_string(sweep: Path) -> None:
    assert len(frame.load(str(sweep)).rows) == 20
