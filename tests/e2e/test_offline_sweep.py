"""Sweeps that serve nothing, through Ray, from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sweep_process import PATIENT

from harness.__main__ import main
from workloads.replay import ReplayConfig, replay
from workloads.traces import Trace

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


def test_what_a_sweep_records_replays_to_its_own_hit_rate(tmp_path: Path) -> None:
    """trace.record through Ray and the server, into the point's folder, and back in as a workload."""
    command = [
        *("experiment=quickstart", "tracker=none", f"results_dir={tmp_path}", "offload=hisparse_sync", "name=recorded"),
        *("load.concurrencies=[2]", "workload.input_len=200", "workload.output_len=24", "trace.record=true", *PATIENT),
    ]
    assert main(command) == 0
    (path,) = tmp_path.glob("recorded/*/*/selections.trace")
    row = json.loads((path.parent / "result.json").read_text())
    trace = Trace(path)
    assert trace.requests == [0, 1] and trace.most_steps == 23  # the warm-up is not in it
    setting = ReplayConfig("lru", row["cache_slots"])
    (replayed,) = replay((trace.blocks(*key) for key in trace.streams), [setting])
    missed, selected = (sum(int(part.sum()) for part in of) for of in (replayed.misses, replayed.selected))
    assert missed > 0 and row["hit_rate"] == pytest.approx(1 - missed / selected, abs=1e-12)
    command = [
        *("experiment=fig6", "tracker=none", f"results_dir={tmp_path}", "workload=selection_trace", "name=replayed"),
        *(f"workload.trace={path}", "model=glm_tiny", "replay.policy=lru,belady", "offload.cache_slots=128"),
    ]
    assert main(command) == 0
    rows = [json.loads(found.read_text()) for found in sorted(tmp_path.glob("replayed/*/*/result.json"))]
    assert [(r["policy"], r["status"]) for r in rows] == [("belady", "ok"), ("lru", "ok")]
    assert rows[0]["miss_rate"] <= rows[1]["miss_rate"] == pytest.approx(replayed.miss_rate)
    assert (tmp_path / "replayed" / "figures" / "miss_rate_per_step.png").is_file()
