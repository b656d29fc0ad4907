"""Figure 8 from rows of engine=sglang: the cells as they are planned, with numbers that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.draw import Drawn, draw
from analysis.figures import PANELS, build
from analysis.frame import load
from harness.config import load_cells
from harness.experiment import plan
from harness.records import Status
from harness.schema import to_yaml
from harness.store import write_point


@pytest.fixture
def folder(tmp_path: Path, synthetic: Any) -> Path:
    results = tmp_path
    overrides = ["experiment=fig8", "engine=sglang", "tracker=none", f"results_dir={results}"]
    for cell in plan(load_cells(overrides)):
        assert cell.infeasible is None
        for point in cell.points:
            numbers = synthetic.measures(cell.config.offload.system.value, point.concurrency)
            row = cell.row(
                point, Status.OK, count_source="continuous_usage", server_version="sglang 0.5.23", measures=numbers
            )
            write_point(results / "fig8", row, [], config_yaml=to_yaml(cell.config), env={}, server_log="")
    return results / "fig8"


def test_all_four_systems_are_drawn_with_dashed_decode_only_lines_and_stars(folder: Path) -> None:
    (group,) = load(folder).groups
    assert group.key["engine"] == "sglang" and len(group.series) == 4
    figure = build(group, PANELS)
    throughput = figure.axes[0]
    lines = {str(line.get_gid()): line for line in throughput.get_lines() if line.get_gid()}
    decode = [line for gid, line in lines.items() if gid.startswith("decode_only_throughput")]
    assert len(decode) == 4 and all(line.get_linestyle() not in ("-", "None") for line in decode)
    stars = [line for line in throughput.get_lines() if line.get_marker() == "*"]
    assert stars  # the published peaks of GLM-5.2 on eight H200
    assert "simulated" not in str(figure._suptitle)


def test_the_report_names_the_engine_and_not_a_simulation(folder: Path) -> None:
    drawn: Drawn = draw(folder)
    page = drawn.report.read_text()
    assert "sglang" in page and "simulated" not in page.lower()
