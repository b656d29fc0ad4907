"""Measured beside simulated: pairs, errors by hand, and a figure in which both are labelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import prediction_figure
from analysis.__main__ import main
from analysis.prediction import MEASURES, compare, errors_table, points_table
from harness.records import Status

THROUGHPUTS = (100.0, 110.0, 150.0)  # of three repeats


@pytest.fixture
def folders(tmp_path: Path, synthetic: Any) -> list[Path]:
    """Full KV at 1 and 4, measured three times and simulated once; the oracle at 4, measured only."""
    for system, concurrency in (("full_kv", 1), ("full_kv", 4), ("no_io_oracle", 4)):
        for repeat, throughput in enumerate(THROUGHPUTS):
            found = {"output_throughput": throughput, "mean_ttft_ms": 400.0, "mean_tpot_ms": 10.0 * concurrency}
            synthetic.write(tmp_path / "measured", synthetic.row(system, concurrency, repeat=repeat, measures=found))
        if system == "full_kv":
            found = {"output_throughput": 99.0, "mean_ttft_ms": 500.0, "mean_tpot_ms": 10.0 * concurrency}
            row = synthetic.row(system, concurrency, measures=found, engine="simulated", platform="this_machine")
            synthetic.write(tmp_path / "simulated", row)
    return [tmp_path / "measured", tmp_path / "simulated"]


def test_errors_by_hand(folders: list[Path]) -> None:
    comparison = compare(folders)
    assert list(comparison.points["concurrency"]) == [1, 4]
    assert comparison.errors("output_throughput") == pytest.approx([0.1, 0.1])  # of the median, 110
    assert comparison.errors("mean_ttft_ms") == pytest.approx([0.25, 0.25])
    assert comparison.errors("mean_tpot_ms") == pytest.approx([0.0, 0.0])
    assert sorted(comparison.spread["output_throughput"]) == pytest.approx(sorted([10 / 110, 0, 40 / 110] * 2))
    assert comparison.unpaired == 1
    rows = {row[0]: row[1:] for row in errors_table(comparison).rows}
    assert rows["TTFT ms"] == ["25.0%", "25.0%", "25.0%", "25.0%", "2"]
    assert rows["all"][-1] == "6"
    ((title, points),) = comparison.groups()
    assert "glm_tiny, dsa: 1,024 in, 64 out" in title
    assert points_table(points).rows[0][2:5] == ["110", "99.0", "-10%"]


def test_the_order_of_folders_and_points_that_are_not_ok_do_not_matter(folders: list[Path], synthetic: Any) -> None:
    failed = synthetic.row("full_kv", 1, repeat=3, status=Status.INVALID, reason="late", measures={})
    synthetic.write(folders[0], failed)
    assert compare(folders[::-1]).points.equals(compare(folders).points)
    assert list(compare(folders).points["repeats"]) == [3, 3]


def test_the_figure_says_which_line_is_which(folders: list[Path]) -> None:
    comparison = compare(folders)
    ((title, points),) = comparison.groups()
    figure = prediction_figure.build(points, title)
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "simulated" in said and "measured (median, range of repeats)" in said
    assert figure.get_suptitle().startswith("measured and simulated: ")
    for axes, measure in zip(figure.axes, MEASURES, strict=True):
        drawn = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
        assert drawn["simulated: Full KV (baseline)"] == list(points[f"{measure}_simulated"])
        measured = [container for container in axes.containers if container.get_label().startswith("measured: ")]
        assert list(measured[0].lines[0].get_ydata()) == list(points[measure])


def test_the_command_prints_and_writes(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, folders)]) == 0
    out = capsys.readouterr().out
    assert "2 points compared, 1 only on one side" in out
    written = folders[1] / "comparison"
    assert (written / "comparison.png").stat().st_size > 10_000
    assert len(pd.read_csv(written / "comparison.csv")) == 2


def test_what_cannot_be_compared_is_refused_in_one_line(
    folders: list[Path], tmp_path: Path, synthetic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.write(tmp_path / "other", synthetic.row("full_kv", 2, engine="simulated"))
    for named, said in (
        (folders[:1], "holds a point that is simulated and ok"),
        (folders[1:], "holds a point that is measured and ok"),
        ([folders[0], tmp_path / "other"], "no simulated point is of the same cell"),
        ([tmp_path / "nowhere"], "nowhere"),
    ):
        assert main(["compare", *map(str, named)]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1
