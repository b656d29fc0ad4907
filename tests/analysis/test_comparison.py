"""Published rows beside ours: what counts as covered, and that errors are of held-out rows alone."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis import comparison, published

ROW = {"platform": "h200x8", "model": "glm52", "status": "ok", "input_len": 32768, "num_requests": 8}


def _rows(*rows: dict[str, object]) -> pd.DataFrame:
    blank = dict.fromkeys(
        ("output_throughput", "decode_only_throughput", "mean_ttft_ms", "mean_tpot_ms", "peak_running")
    )
    return pd.DataFrame([ROW | blank | row for row in rows])


def _at(table: pd.DataFrame, system: str, metric: str, concurrency: str) -> pd.Series:
    found = table[
        (table["figure"] == "fig8")
        & (table["system"] == system)
        & (table["metric"] == metric)
        & (table["concurrency"] == concurrency)
    ]
    assert len(found) == 1
    return found.iloc[0]


def test_every_published_row_has_one_label_and_doubts_have_reasons() -> None:
    table = comparison.standing()
    assert len(table) == len(published.table())
    assert set(table["label"]) == set(comparison.LABELS)
    doubted = table[table["label"].isin(["inconsistent-source", "chosen-after-seeing", "not-covered", "fitted"])]
    assert (doubted["reason"].str.len() > 5).all()


def test_units_peaks_and_differences() -> None:
    table = comparison.compare(
        _rows(
            {"offload": "full_kv", "concurrency": 8, "mean_ttft_ms": 10000.0, "output_throughput": 300.0},
            {"offload": "full_kv", "concurrency": 64, "mean_ttft_ms": 1.0, "output_throughput": 650.0},
            {"offload": "hisparse_prefetch", "concurrency": 8, "mean_tpot_ms": 27.0},
            {"offload": "no_io_oracle", "concurrency": 8, "mean_tpot_ms": 24.0},
        )
    )
    assert _at(table, "full_kv", "mean_ttft", "8")["ours"] == pytest.approx(10.0)  # seconds
    assert _at(table, "full_kv", "throughput", "peak")["error"] == pytest.approx(650 / 618 - 1)
    assert _at(table, "hisparse_prefetch", "exposed_io_per_token", "8")["ours"] == pytest.approx(3.0)
    assert pd.isna(_at(table, "hisparse_sync", "throughput", "256")["ours"])


def test_rows_that_are_not_ok_and_later_variants_do_not_count() -> None:
    table = comparison.compare(
        _rows(
            {"offload": "full_kv", "concurrency": 16, "mean_ttft_ms": 99.0, "status": "invalid", "num_requests": 4},
            {"offload": "full_kv", "concurrency": 16, "mean_ttft_ms": 32000.0, "num_requests": 64},
            {"offload": "full_kv", "concurrency": 16, "mean_ttft_ms": 16000.0, "num_requests": 16},
        )
    )
    assert _at(table, "full_kv", "mean_ttft", "16")["ours"] == pytest.approx(16.0)


def test_only_held_out_rows_are_summed_up() -> None:
    table = comparison.compare(
        _rows(
            {"offload": "full_kv", "concurrency": 8, "mean_ttft_ms": 5000.0},  # fitted: half of what is published
            {"offload": "full_kv", "concurrency": 16, "mean_ttft_ms": 16.0e3 * 1.1},
            {"offload": "full_kv", "concurrency": 32, "mean_ttft_ms": 91.0e3 * 0.7},
        )
    )
    found = comparison.summary(table)
    assert found["rows"] == 2
    assert found["mean"] == pytest.approx(0.2)
    assert found["worst"] == pytest.approx(0.3)
    assert "held-out rows: 2" in comparison.sentence(table)


def test_a_folder_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert comparison.main(["no/such/folder"]) == 2
    assert "no such results folder" in capsys.readouterr().err
