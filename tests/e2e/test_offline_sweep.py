"""A sweep that serves nothing, through Ray, from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.__main__ import main

pytestmark = pytest.mark.slow


def test_figure_7_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        *("experiment=fig7", "tracker=none", f"results_dir={tmp_path}", "model=glm51", "selector=dsa"),
        *("selector.top_k=64", "offload.cache_slots=64,128", "workload.miss_rate=0.2", "workload.input_len=1024"),
        *("workload.output_len=3", "load.concurrencies=[1,2]"),
    ]
    assert main(command) == 0
    rows = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("fig7/*/*/result.json"))]
    assert [(row["cache_slots"], row["concurrency"], row["status"]) for row in rows] == [
        *((128, 1, "ok"), (128, 2, "ok"), (64, 1, "ok"), (64, 2, "ok")),
    ]
    assert all(row["resolve_us"] > 0 and row["output_throughput"] is None for row in rows)
    assert (tmp_path / "fig7" / "figures" / "figure7.png").is_file()
    capsys.readouterr()
    assert main(command) == 0  # all on disk
    assert "everything is done: 4 points" in capsys.readouterr().out
