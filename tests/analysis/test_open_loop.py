"""Open loops in the analysis: cells that differ in their pace are one line, and every word says so; Pareto; repeats."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import figures, frame, report, settings, tables


def config(mode: str = "open", **load: Any) -> str:
    keys = {"mode": mode, "arrivals": "poisson", "request_rate": "null", "slowdown": 1.0} | load
    lines = "\n".join(f"  {key}: {value}" for key, value in keys.items())
    return f"name: demo\nworkload:\n  temperature: 0.0\n  max_input_len: 900\nload:\n{lines}\n"


@pytest.fixture
def rates(tmp_path: Path, synthetic: Any) -> Path:
    """Two systems at three request rates, a cell each."""
    for system in ("full_kv", "hisparse_sync"):
        for rate, like in ((0.5, 1), (1.0, 4), (2.0, 16)):
            found = synthetic.measures(system, like)
            found |= {"output_throughput_per_user": 1000 / found["mean_tpot_ms"], "goodput": 0.25}
            found["output_throughput_per_device"] = found["output_throughput"]
            row = synthetic.row(system, 64, cell_id=f"{system}-{rate}", measures=found)
            synthetic.write(tmp_path, row, config=config(request_rate=rate))
    return tmp_path


def test_paces_are_the_points_of_one_line(rates: Path) -> None:
    (group,) = frame.load(rates).groups
    assert [series.short for series in group.series] == ["Full KV", "HiSparse, sync (B=128)"]
    assert group.concurrencies == [0.5, 1.0, 2.0]
    line = group.line(1, "output_throughput")
    assert line["concurrency"].tolist() == [0.5, 1.0, 2.0]
    assert line["output_throughput"].is_monotonic_increasing
    assert group.baseline_of(1) == 0
    assert (group.is_closed, group.axis.header) == (False, "req/s")
    assert "up to 1,024 tokens in" in group.title and "open loop, arrivals: poisson" in group.title


def test_a_trace_is_told_by_its_speed_and_kept_apart(rates: Path, synthetic: Any) -> None:
    row = synthetic.row("full_kv", 64, cell_id="trace")
    synthetic.write(rates, row, config=config(arrivals="trace", slowdown=0.25))
    closed = synthetic.row("full_kv", 64, cell_id="closed")
    synthetic.write(rates, closed, config=config(mode="closed", arrivals="null"))
    groups = {group.key["arrivals"]: group for group in frame.load(rates).groups}
    assert set(groups) == {"closed", "poisson", "trace"}
    assert groups["trace"].concurrencies == [4.0]
    assert groups["closed"].concurrencies == [64]
    assert (groups["trace"].at(4.0), groups["closed"].at(64), groups["poisson"].at(0.5)) == ("4", "64", "0.5")


def test_a_cell_that_differs_in_more_is_another_line(rates: Path, synthetic: Any) -> None:
    more = synthetic.row("full_kv", 64, cell_id="other")
    synthetic.write(rates, more, config=config(request_rate=4.0, burstiness=0.5))
    (group,) = frame.load(rates).groups
    assert [s.words for s in group.series if s.system == "full_kv"] == [
        "Full KV (baseline, burstiness=0.5)",
        "Full KV (baseline, burstiness=None)",
    ]


def test_tables_and_captions_name_the_pace(rates: Path) -> None:
    experiment = frame.load(rates)
    (group,) = experiment.groups
    table = tables.summary(group)
    assert ("req/s", "") in table.headers and ("good", "put") in table.headers
    assert [row[1] for row in table.rows] == ["0.5", "1", "2"] * 2
    assert {row[-2] for row in table.rows} == {"25.0%"}
    assert re.match(r"HiSparse, sync \(B=128\) at 2: [\d.]+ times full KV at 2, ", tables.comparisons(group)[0])
    assert ("load.request_rate", "0.5") not in settings.configuration(experiment, group)  # a line has all of them
    panels = {panel.name: panel for panel in figures.panels_with_data(group)}
    figure = figures.build(group, [panels["throughput"]])
    assert figure.axes[0].get_xlabel() == "Request rate asked for (requests/s)"
    caption = report.picture(group, panels["throughput"], figure).caption
    assert "against the request rate of the open loop" in caption


def test_pareto_stands_alone_and_needs_its_measures(rates: Path, sweep: Path) -> None:
    (group,) = frame.load(rates).groups
    assert figures.PARETO.has_data(group) and figures.PARETO not in figures.PANELS
    (axes,) = figures.build(group, [figures.PARETO]).axes
    lines = [line for line in axes.get_lines() if str(line.get_gid()).startswith("output_throughput_per_device")]
    assert len(lines) == 2
    expected = group.line(0, "output_throughput_per_user")
    np.testing.assert_allclose(lines[0].get_xdata(), expected["output_throughput_per_user"])
    np.testing.assert_allclose(lines[0].get_ydata(), expected["output_throughput_per_device"])
    older = frame.load(sweep).groups[0]  # rows of before the measure
    assert not figures.PARETO.has_data(older)


@pytest.mark.parametrize(("count", "shown"), [(4, False), (6, True)])
def test_repeats_have_an_interval_where_there_are_enough(
    tmp_path: Path, synthetic: Any, count: int, shown: bool
) -> None:
    for repeat in range(count):
        found = synthetic.measures("full_kv", 4) | {"output_throughput": 100.0 + repeat}
        synthetic.write(tmp_path, synthetic.row("full_kv", 4, repeat=repeat, measures=found))
    (group,) = frame.load(tmp_path).groups
    table = tables.repeats(group)
    assert (table is not None) == shown
    if table:
        (row,) = table.rows
        mean, low, high = (float(text) for text in re.findall(r"[\d.]+", row[3]))
        assert row[:3] == ["Full KV", "4", "6"]
        assert mean == pytest.approx(102.5, abs=0.5)
        assert 100 <= low < mean < high <= 105
