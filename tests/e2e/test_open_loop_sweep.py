"""An open loop over a trace, driven by two load generators of a real Ray, from the command line to the figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_process import Start

from harness.records import Status
from harness.store import read_requests, read_row


def test_a_trace_is_replayed_by_two_processes_and_drawn_as_a_line(start: Start, tmp_path: Path) -> None:
    run = start(
        "offload=hisparse_sync",
        "load.slowdown=0.1,0.05",
        "load.num_requests=12",
        "load.processes=2",
        "tracker=none",
        base=["experiment=trace_replay"],
    )
    assert run.end() == 0, run.said()
    folder = tmp_path / "results" / "trace_replay"
    points = sorted(folder.glob("*/c64-r0"))
    assert len(points) == 2
    rates = []
    for point in points:
        row, requests = read_row(point), read_requests(point)
        assert (row.status, row.reason) == (Status.OK, None)
        m = row.measures
        assert (m["completed"], m["load_processes"], m["clock_uncertainty_ms"]) == (12, 2, 0)
        assert m["decode_tokens"] == m["total_output_tokens"] - 12
        assert sorted(requests["request_id"]) == [f"request-{i:05d}" for i in range(12)]
        assert (requests["sent_s"] >= requests["scheduled_s"]).all()
        rates.append(m["offered_request_rate"])
    assert max(rates) == pytest.approx(2 * min(rates), rel=1e-6)
    assert (folder / "figures" / "pareto.png").is_file()
    assert "arrivals: trace" in " ".join(run.stdout.split())
