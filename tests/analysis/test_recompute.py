"""Stored requests measured again: the same numbers as when they were fresh, other SLOs, and what differs is said."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.recompute import read_requests, recompute
from harness.loadgen.metrics import Rules, measure
from harness.records import RequestRecord

CONFIG = "name: demo\nload:\n  mode: closed\n  slo_ttft_ms: 250.0\nplatform:\n  num_devices: 2\n"


def requests(count: int = 12) -> list[RequestRecord]:
    found = [
        RequestRecord(
            request_id=f"r{i}",
            worker=i % 2,
            prompt_sha=str(i),
            input_len=10 if i else None,
            output_len=3,
            scheduled_s=i // 2 * 1.0,
            sent_s=i // 2 + 0.002,
            chunk_times_s=[i // 2 + 0.1 + 0.02 * i, i // 2 + 0.6, i // 2 + 1.0],
            chunk_tokens=[1, 2, 1],
            end_s=i // 2 + 1.0,
            prompt_tokens=11,
            output_tokens=4,
            count_source="usage",
        )
        for i in range(count)
    ]
    found[-1].error, found[-1].error_detail = "early_stop", "gone"
    return found


@pytest.fixture
def stored(tmp_path: Path, synthetic: Any) -> Path:
    fresh = measure(requests(), Rules(concurrency=2, slo_ttft_ms=250.0, devices=2))
    synthetic.write(tmp_path, synthetic.row("full_kv", 2, measures=fresh), requests(), CONFIG)
    return tmp_path


def test_stored_requests_are_the_requests(stored: Path) -> None:
    assert read_requests(stored / "cell-full_kv" / "c2-r0") == requests()


def test_fresh_and_stored_measure_the_same(stored: Path) -> None:
    found = recompute(stored, {})
    assert found.differences == []
    (row,) = found.rows.to_dict("records")
    assert row["goodput"] == pytest.approx(8 / 12)  # TTFT of 100, 120 ... 240 ms; the last failed
    assert row["output_throughput_per_device"] == pytest.approx(row["output_throughput"] / 2)
    assert row["steady_duration_s"] > 0
    with found.file.open() as file:
        (line,) = csv.DictReader(file)
    assert float(line["mean_ttft_ms"]) == pytest.approx(row["mean_ttft_ms"])


def test_other_slos_change_goodput_and_are_no_difference(stored: Path) -> None:
    before = (stored / "cell-full_kv" / "c2-r0" / "result.json").read_bytes()
    found = recompute(stored, {"slo_ttft_ms": 125.0})
    assert found.rows["goodput"].tolist() == [pytest.approx(2 / 12)]
    assert found.differences == []
    assert (stored / "cell-full_kv" / "c2-r0" / "result.json").read_bytes() == before


def test_a_row_that_its_requests_do_not_give_is_named(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = stored / "cell-full_kv" / "c2-r0" / "result.json"
    row = json.loads(file.read_text())
    row["mean_ttft_ms"] += 1
    file.write_text(json.dumps(row))
    assert main(["recompute", str(stored), "--slo-ttft-ms", "125"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "differs: cell-full_kv at 2, repeat 0: mean_ttft_ms is 201 in its row, 200 from its requests" in out
    assert "1 points measured again, 1 stored measures differ" in out


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recompute", str(tmp_path / "none")]) == 2
    assert "no such results folder" in capsys.readouterr().err
    assert main(["recompute", str(tmp_path)]) == 2
    assert "holds no points" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["recompute", str(tmp_path), "--slo-ttft-ms", "-1"])
