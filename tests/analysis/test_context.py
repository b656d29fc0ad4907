"""Peak throughput across context lengths, and the table of the IO that prefetch hid."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from analysis import context, hidden_io
from analysis.draw import draw
from analysis.frame import load
from analysis.labels import MISSING

LENGTHS = (256, 1024, 4096)
FULL = {256: 400.0, 1024: 200.0, 4096: 50.0}  # halves and halves again as fewer fit
SPARSE = 420.0


def sweep_of(root: Path, synthetic: Any, **changes: Any) -> Path:
    for length in LENGTHS:
        for system, peak in (("full_kv", FULL[length]), ("hisparse_sync", SPARSE)):
            for concurrency in (4, 16):
                found = synthetic.measures(system, concurrency)
                found |= {"output_throughput": peak * (1.0 if concurrency == 16 else 0.7)}
                row = synthetic.row(
                    system,
                    concurrency,
                    input_len=length,
                    measures=found,
                    cell_id=f"{system}-{length}-{len(changes)}",
                    **changes,
                )
                synthetic.write(root, row)
    return root


def text_of(renderable: object) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_groups_that_differ_in_length_alone_are_one_family(tmp_path: Path, synthetic: Any) -> None:
    sweep_of(tmp_path / "demo", synthetic)
    sweep_of(tmp_path / "demo", synthetic, selector="quest", model="qwen3_tiny")
    found = context.families(load(tmp_path / "demo").groups)
    assert sorted((f.groups[0].key["selector"], len(f.groups)) for f in found) == [("dsa", 3), ("quest", 3)]
    for family in found:
        gains = {p.context - 64: p.gain for p in family.peaks if p.series.system == "hisparse_sync"}
        assert gains == pytest.approx({length: SPARSE / FULL[length] for length in LENGTHS})
        assert all(p.gain is None for p in family.peaks if p.series.system == "full_kv")
        assert {p.concurrency for p in family.peaks} == {16}


def test_one_length_is_no_family(sweep: Path) -> None:
    assert context.families(load(sweep).groups) == []


@pytest.mark.slow
def test_the_figure_shows_every_peak_and_its_gain(tmp_path: Path, synthetic: Any) -> None:
    drawn = draw(sweep_of(tmp_path / "demo", synthetic))
    assert {path.name for path in drawn.figures} >= {"context.pdf", "context.png"}
    figure = context.build(context.families(load(tmp_path / "demo").groups))
    (axes,) = (axes for axes in figure.axes if axes.axison)
    drawn_y = {
        tuple(round(float(y), 3) for y in line.get_ydata()) for line in axes.get_lines() if len(line.get_ydata()) == 3
    }
    assert {tuple(FULL.values()), (SPARSE,) * 3} <= drawn_y
    assert {text.get_text() for text in axes.texts} == {"1.05x", "2.10x", "8.40x"}
    page = drawn.report.read_text()
    assert "Across context lengths" in page
    assert "8.40" in page
    assert "peak by context" in text_of(drawn.summary)


def test_hidden_io_is_what_sync_exposes_and_prefetch_does_not(tmp_path: Path, synthetic: Any) -> None:
    tpot = {"hisparse_sync": 30.0, "hisparse_prefetch": 24.0, "no_io_oracle": 20.0}
    exposed = {"hisparse_sync": 8.0, "hisparse_prefetch": 2.0, "no_io_oracle": 0.0}
    for system in tpot:
        found = {**synthetic.measures(system, 8), "mean_tpot_ms": tpot[system]}
        found["exposed_io_ms_per_token"] = exposed[system]
        link = "emulated 2 GB/s + 10 us"
        synthetic.write(tmp_path / "demo", synthetic.row(system, 8, measures=found, link=link))
    (group,) = load(tmp_path / "demo").groups
    table = hidden_io.table(group)
    assert table is not None
    (row,) = table.rows
    assert row[1:] == ["8", "8.00", "2.00", "75.0%", "30.0", "24.0", "20.0", "60.0%"]
    drawn = draw(tmp_path / "demo")
    assert {path.stem for path in drawn.figures} >= {"overview", "io"}
    assert "75.0%" in drawn.report.read_text()
    assert "host link emulated 2 GB/s + 10 us" in drawn.report.read_text()
    assert "hidden IO" in text_of(drawn.summary)
    assert "IO that prefetch hid" in drawn.report.read_text()


def test_without_sync_or_oracle_nothing_is_claimed(tmp_path: Path, synthetic: Any) -> None:
    synthetic.sweep(tmp_path / "alone", ["hisparse_prefetch"])
    assert hidden_io.table(load(tmp_path / "alone").groups[0]) is None
    for system, waited in (("hisparse_prefetch", 2.0), ("hisparse_sync", 0.0)):
        found = synthetic.measures(system, 4) | {"exposed_io_ms_per_token": waited}
        synthetic.write(tmp_path / "bare", synthetic.row(system, 4, measures=found))
    table = hidden_io.table(load(tmp_path / "bare").groups[0])
    assert table is not None
    (row,) = table.rows
    assert (row[4], row[7], row[8]) == (MISSING, MISSING, MISSING)


def test_a_figure_says_that_its_link_is_emulated(tmp_path: Path, synthetic: Any) -> None:
    from analysis import figures

    synthetic.sweep(tmp_path / "demo", ["full_kv", "hisparse_sync"], link="emulated 300 MB/s")
    (group,) = load(tmp_path / "demo").groups
    for panels in (figures.panels_with_data(group), figures.panels_with_data(group)[:1]):
        figure = figures.build(group, panels)
        assert "host link emulated 300 MB/s" in {text.get_text() for text in figure.legends[0].get_texts()}
