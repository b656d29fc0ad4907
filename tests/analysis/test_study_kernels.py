"""Figure 7 from rows: what is drawn, what is tabled, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from analysis import published
from analysis.draw import draw
from analysis.studies import kernels
from harness import store
from harness.records import ResultRow, Status


def _row(ratio: int, batch: int, *, status: Status = Status.OK, model: str = "glm51") -> ResultRow:
    misses = {1: 0.3, 2: 0.134, 4: 0.067}[ratio]
    io = 100.0 * batch * misses
    return ResultRow(
        experiment="fig7",
        cell_id=f"{model}-{ratio}",
        engine="kernels",
        model=model,
        selector="dsa",
        platform="cpu",
        offload="hisparse_sync",
        top_k=2048,
        cache_slots=2048 * ratio,
        workload="selections",
        input_len=12288,
        output_len=20,
        concurrency=batch,
        num_requests=batch,
        repeat=0,
        status=status,
        reason=None if status is Status.OK else "the measurement failed: out of memory",
        measures={}
        if status is not Status.OK
        else {
            "miss_rate": misses,
            "io_us": io,
            "probe_scan_us": 10.0 * ratio,
            "residual_us": None,
            "resolve_us": io + 10 * ratio,
            "replay_us": io,
            "floor_us": io / 2,
            "reference_us": None,
        },
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [_row(r, b) for r in (1, 2, 4) for b in (1, 16)] + [_row(4, 64, status=Status.FAILED)]
    for row in rows:
        store.write_point(tmp_path / "fig7", row, [], config_yaml="{}", env={}, server_log="")
    return tmp_path / "fig7"


def test_files_tables_and_report(folder: Path) -> None:
    drawn = draw(folder)
    assert sorted(path.name for path in drawn.figures) == ["figure7.pdf", "figure7.png"]
    page = drawn.report.read_text()
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(drawn.summary)
    shown = console.export_text()
    for text in (page, shown):
        assert "Resolve, taken apart, on cpu" in text
        assert "glm51-4 at 64: failed: the measurement failed: out of memory" in text
        assert "nan" not in text
    assert "TTFT" not in page  # words of serving experiments


def test_lines_and_the_papers_marks(folder: Path) -> None:
    rows = store.read_rows(folder)
    found = kernels.study(rows[rows["status"] == "ok"])
    figure = found.plots[0].figure
    above, below = figure.axes
    lines = {line.get_gid(): line for line in above.lines if line.get_gid() and ":" in line.get_gid()}
    (io,) = [line for gid, line in lines.items() if gid.startswith("io_us")]
    assert list(io.get_xdata()) == [1, 2, 4]
    assert list(io.get_ydata()) == pytest.approx([480, 214.4, 107.2])
    assert not any(gid.startswith("residual_us") for gid in lines)  # a GPU does not time it
    marks = {float(line.get_ydata()[0]) for line in above.lines if line.get_color() == "black"}
    assert marks == {112.0, 29.0} == set(published.rows("fig7").iloc[:2]["value"].astype(float))
    (io_below,) = [line for line in below.lines if (line.get_gid() or "").startswith("io_us")]
    assert list(io_below.get_xdata()) == [1, 16]


def test_without_an_ok_point_there_is_still_a_report(tmp_path: Path) -> None:
    row = _row(1, 1, status=Status.FAILED)
    store.write_point(tmp_path / "fig7", row, [], config_yaml="{}", env={}, server_log="")
    drawn = draw(tmp_path / "fig7")
    assert drawn.figures == [] and "out of memory" in drawn.report.read_text()
