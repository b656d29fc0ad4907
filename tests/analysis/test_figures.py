"""What is drawn: lines, values, words, axes; and label placement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis import annotate, canvas, figures, frame, labels, report

PANELS = {panel.name: panel for panel in figures.PANELS}


def group_of(folder: Path) -> frame.Group:
    (group,) = frame.load(folder).groups
    return group


def axes_of(group: frame.Group, panel: str) -> Axes:
    return figures.build(group, [PANELS[panel]]).axes[0]


def lines_of(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    drawn = [line for line in axes.get_lines() if line.get_gid()]
    return {str(line.get_gid()): (list(line.get_xdata()), list(line.get_ydata())) for line in drawn}


def test_throughput_has_a_solid_and_a_decode_only_line_per_system(sweep: Path, synthetic: Any) -> None:
    group = group_of(sweep)
    lines = lines_of(axes_of(group, "throughput"))
    assert len(lines) == 2 * len(group.series)
    x, y = lines["output_throughput:Full KV (baseline)"]
    assert x == [1, 2, 4, 8, 16]
    assert y == pytest.approx([synthetic.measures("full_kv", c)["output_throughput"] for c in x])
    x, y = lines["decode_only_throughput:HiSparse, sync (B=128)"]
    assert y == pytest.approx([synthetic.measures("hisparse_sync", c)["decode_only_throughput"] for c in x])


def test_latency_panels_are_drawn_against_throughput(sweep: Path, synthetic: Any) -> None:
    lines = lines_of(axes_of(group_of(sweep), "ttft"))
    assert len(lines) == 4
    x, y = lines["mean_ttft_ms:Fetch all"]
    expected = [synthetic.measures("fetch_all", c) for c in (1, 2, 4, 8, 16)]
    assert x == pytest.approx([m["output_throughput"] for m in expected])
    assert y == pytest.approx([m["mean_ttft_ms"] for m in expected])


def test_the_running_panel_shows_the_cause_of_the_plateau(sweep: Path) -> None:
    lines = lines_of(axes_of(group_of(sweep), "running"))
    assert lines["peak_running:Full KV (baseline)"][1] == [1, 2, 3, 3, 3]
    assert lines["peak_running:HiSparse, sync (B=128)"][1] == [1, 2, 4, 8, 16]


def test_points_of_the_running_panel_lie_on_their_concurrency(slots_sweep: Path) -> None:
    group = group_of(slots_sweep)
    axes = axes_of(group, "running")
    drawn = [line for line in axes.get_lines() if str(line.get_gid()).startswith("peak_running")]
    moved = []
    for line in drawn:
        assert list(line.get_xdata()) == group.concurrencies
        there = axes.transData.transform(line.get_xydata())
        here = line.get_transform().transform(line.get_xydata())
        assert here[:, 1] == pytest.approx(there[:, 1])
        moved.append(float(np.unique((here - there)[:, 0].round(6))[0]) * 72 / axes.figure.dpi)
    assert max(map(abs, moved)) <= 1.6 < line.get_markersize() / 2
    assert len(set(moved)) == len(group.series)


def test_the_running_axis_names_the_peaks_that_occur(sweep: Path, slots_sweep: Path) -> None:
    def ticks(folder: Path) -> list[str]:
        return [label.get_text() for label in axes_of(group_of(folder), "running").get_yticklabels()]

    assert ticks(sweep) == ["1", "2", "3", "4", "8", "16"]
    assert {"3", "4", "8", "10", "16"} <= set(ticks(slots_sweep))


def test_the_line_of_no_queue_is_seen_over_the_lines_on_it(sweep: Path) -> None:
    axes = axes_of(group_of(sweep), "running")
    (ideal,) = [line for line in axes.get_lines() if line.get_gid() == "ideal"]
    others = [line for line in axes.get_lines() if line is not ideal]
    assert ideal.get_zorder() > max(line.get_zorder() for line in others)
    assert ideal.get_linewidth() < min(line.get_linewidth() for line in others)
    assert ideal.get_xdata()[0] < 1 and ideal.get_xdata()[1] > 16


def test_with_many_lines_the_decode_only_ones_are_left_out_and_the_legend_says_so(slots_sweep: Path) -> None:
    figure = figures.build(group_of(slots_sweep), [PANELS["throughput"]])
    assert len(lines_of(figure.axes[0])) == 7
    assert not any(gid.startswith("decode") for gid in lines_of(figure.axes[0]))
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "decode steps only: in the table" in words
    caption = report.picture(group_of(slots_sweep), PANELS["throughput"], figure).caption
    assert caption.endswith("Decode-only throughput is left out for so many lines; the table has it.")
    assert not any("hollow" in text or "filled" in text for text in words)


def test_decode_only_markers_are_all_hollow_and_the_others_all_filled(sweep: Path) -> None:
    for line in axes_of(group_of(sweep), "throughput").get_lines():
        hollow = str(line.get_gid()).startswith("decode_only")
        assert (line.get_markerfacecolor() == "white") is hollow
        assert (line.get_markeredgecolor() == "white") is not hollow
        assert line.get_markeredgewidth() <= line.get_markersize() / 4


def test_labels_of_pale_lines_are_readable(slots_sweep: Path) -> None:
    colours = {str(text.get_color()) for text in axes_of(group_of(slots_sweep), "tpot").texts}
    assert len(colours) > 2
    assert all(labels.contrast(colour) >= 4.5 for colour in colours)


def test_axes_carry_units_and_the_tested_concurrencies(sweep: Path) -> None:
    group = group_of(sweep)
    throughput = axes_of(group, "throughput")
    assert throughput.get_xscale() == "log"
    assert [label.get_text() for label in throughput.get_xticklabels()] == ["1", "2", "4", "8", "16"]
    assert throughput.get_ylabel() == "Output throughput (tokens/s)"
    assert axes_of(group, "ttft").get_ylabel() == "Mean TTFT (s)"
    assert axes_of(group, "tpot").get_ylabel() == "Mean TPOT (ms)"


def test_the_legend_says_every_system_in_words_and_lies_below_the_axes(sweep: Path) -> None:
    group = group_of(sweep)
    figure = figures.build(group, figures.PANELS)
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words[:4] == [series.words for series in group.series]
    assert {"filled: prefill and decode", "hollow, dashed: decode steps only"} <= set(words)
    lowest = min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert legend.get_window_extent().y1 <= lowest
    assert legend.get_window_extent().x0 >= 0
    assert legend.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize(("spread", "scale"), [(29.0, "linear"), (31.0, "log")])
def test_ttft_is_logarithmic_where_it_spans_more_than_30x(
    tmp_path: Path, synthetic: Any, spread: float, scale: str
) -> None:
    for concurrency, ttft in [(1, 100.0), (2, 100.0 * spread)]:
        measures = {"output_throughput": 10.0 * concurrency, "mean_ttft_ms": ttft}
        synthetic.write(tmp_path, synthetic.row("full_kv", concurrency, measures=measures))
    assert axes_of(group_of(tmp_path), "ttft").get_yscale() == scale


def test_panels_without_measures_are_left_out(tmp_path: Path, synthetic: Any) -> None:
    synthetic.write(tmp_path, synthetic.row("full_kv", 4, measures={"output_throughput": 10.0}))
    group = group_of(tmp_path)
    assert [panel.name for panel in figures.panels_with_data(group)] == ["throughput"]
    assert list(lines_of(axes_of(group, "throughput"))) == ["output_throughput:Full KV (baseline)"]


def test_repeats_get_bars_and_single_runs_none(tmp_path: Path, sweep: Path, synthetic: Any) -> None:
    folder = tmp_path / "repeats"
    for repeat in (0, 1):
        synthetic.sweep(folder, systems=["full_kv"], repeat=repeat)
    assert len(axes_of(group_of(folder), "throughput").containers) == 1
    assert len(axes_of(group_of(sweep), "throughput").containers) == 0


def test_one_concurrency_and_one_system_draw_without_warnings(
    tmp_path: Path, synthetic: Any, recwarn: pytest.WarningsRecorder
) -> None:
    synthetic.write(tmp_path / "demo", synthetic.row("hisparse_sync", 4))
    group = group_of(tmp_path / "demo")
    paths = canvas.save(figures.build(group, figures.PANELS), tmp_path / "one.point")
    assert [path.name for path in paths] == ["one.point.pdf", "one.point.png"]
    assert paths[0].read_bytes().startswith(b"%PDF")
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []


def test_the_same_rows_give_the_same_picture(sweep: Path) -> None:
    group = group_of(sweep)
    first, second = (canvas.svg(figures.build(group, [PANELS["ttft"]])) for _ in range(2))
    assert first == second


def test_point_labels_never_overlap_each_other_or_a_marker(tmp_path: Path, synthetic: Any) -> None:
    synthetic.sweep(tmp_path, concurrencies=(1, 2, 3, 4, 6, 8, 12, 16, 32, 64))
    group = group_of(tmp_path)
    for name in ("ttft", "tpot"):
        axes = axes_of(group, name)
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) >= 2 * len(group.series)
        assert not any(box.count_overlaps(boxes[i + 1 :]) for i, box in enumerate(boxes))
        for x, y in lines_of(axes).values():
            for point in axes.transData.transform(np.column_stack([x, y])):
                assert not any(box.contains(*point) for box in boxes)


def test_labels_without_room_are_left_out() -> None:
    figure = Figure(figsize=(2, 2))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    figure.draw_without_rendering()
    crowd = [annotate.PointLabel(0.5, 0.5, f"{i:04d}", "black") for i in range(40)]
    written = annotate.place(axes, crowd, [np.array([[0.5, 0.5]])])
    assert 4 <= len(written) < 40
    assert written[0].get_text() == "0000"
    assert len(axes.texts) == len(written)


def test_the_ends_of_a_line_are_labelled_first() -> None:
    assert annotate.ends_first(0) == []
    assert annotate.ends_first(1) == [0]
    assert annotate.ends_first(6) == [5, 0, 2, 4, 1, 3]
