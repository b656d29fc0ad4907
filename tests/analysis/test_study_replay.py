"""Replayed selections from rows: what is drawn, what is tabled, and the papers' rates beside ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from analysis import published
from analysis.draw import draw
from analysis.studies import replay
from harness import store
from harness.records import ResultRow, Status


def write(
    folder: Path,
    policy: str,
    slots: int,
    rate: float,
    *,
    workload: str = "glm51_longbench",
    tokens: int = 1,
    empty: bool = False,
    length: int = 1000,
    status: Status = Status.OK,
) -> None:
    row = ResultRow(
        experiment=folder.name,
        cell_id=f"{policy}-{slots}-{tokens}-{workload}",
        engine="replay",
        model="glm51",
        selector="dsa",
        platform="cpu",
        offload="hisparse_sync",
        top_k=2048,
        cache_slots=slots,
        workload=workload,
        input_len=100_384,
        output_len=length,
        concurrency=1,
        num_requests=1,
        repeat=0,
        policy=policy,
        tokens=tokens,
        status=status,
        reason=None if status is Status.OK else "the trace is damaged",
        measures={}
        if status is not Status.OK
        else {
            "miss_rate": rate,
            "first_step_miss_rate": 0.4,
            "replayed_selections": 10**6,
            "selections_per_s": 5e7,
        },
    )
    steps = store.encode_steps(
        {"step": range(length), "miss_rate": np.full(length, rate).tolist(), "sequences": [1] * length}
    )
    config = f"replay: {{empty: {str(empty).lower()}, parameters: []}}\n"
    store.write_point(folder, row, [], config_yaml=config, env={}, server_log="", files={store.STEPS_FILE: steps})


FIG6 = [("staging", 2048, 0.31), ("fifo", 4096, 0.17), ("random", 4096, 0.165), ("lru", 4096, 0.134)]
FIG6 += [("belady", 4096, 0.08), ("lru", 8192, 0.07), ("belady", 8192, 0.035)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for policy, slots, rate in FIG6:
        write(tmp_path / "fig6", policy, slots, rate)
    write(tmp_path / "fig6", "arc", 4096, 0.0, status=Status.FAILED)
    return tmp_path / "fig6"


def shown(folder: Path) -> str:
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(draw(folder).summary)
    return console.export_text()


def test_files_tables_and_report(folder: Path) -> None:
    names = sorted(path.stem for path in draw(folder).figures if path.suffix == ".png")
    assert names == ["hit_rate_by_slots", "miss_rate_per_step", "published"]
    text = shown(folder)
    assert "miss rate, LRU, B=8,192" in text and "6.70   7.00   +0.30   +4.5" in text
    assert "staging 31.0% > FIFO 17.0% > random 16.5% > LRU 13.4% > Bélády 8.0%" in " ".join(text.split())
    assert "the trace is damaged" in text and "nan" not in text.lower()
    page = (folder / "figures" / "report.html").read_text()
    assert "adjacent-step reuse" in page and "TTFT" not in page


def test_means_stand_in_the_legend_and_the_papers_at_the_edge(folder: Path) -> None:
    rows = store.read_rows(folder)
    plots = {plot.name: plot.figure for plot in replay.study(rows[rows["status"] == "ok"]).plots}
    figure = plots["miss_rate_per_step"]
    (axes,) = figure.axes
    drawn = {line.get_gid() for line in axes.lines if not (line.get_gid() or "_").startswith("_")}
    assert drawn == {
        *("staging, B=2,048", "FIFO, B=4,096", "random, B=4,096", "LRU, B=4,096", "Bélády, B=4,096"),
        *("LRU, B=8,192", "Bélády, B=8,192"),
    }
    stars = sorted(float(line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "*")
    assert stars == sorted(float(v) / 100 for v in published.rows("fig6")["value"])
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "LRU, B=4,096: 13.4% (paper 13.4%)" in said and "Bélády, B=8,192: 3.5%" in said
    (by_slots,) = plots["hit_rate_by_slots"].axes
    (lru,) = [line for line in by_slots.lines if line.get_gid() == "LRU"]
    assert list(lru.get_xdata()) == [4096, 8192] and list(lru.get_ydata()) == pytest.approx([0.866, 0.93])


def test_avsgs_rates(tmp_path: Path) -> None:
    folder = tmp_path / "avsg_reuse"
    write(folder, "staging", 2048, 0.20, workload="glm53_agent")
    write(folder, "avsg", 4096, 0.10, workload="glm53_agent")
    write(folder, "avsg", 8192, 0.06, workload="glm53_agent")
    write(folder, "avsg", 8192, 0.08, workload="glm53_agent", tokens=4, empty=True)
    text = shown(folder)
    for line in (
        "adjacent-step reuse                81.61  80.00  -1.61   -2.0",
        "hit rate, AVSG, B=4,096            88.72  90.00  +1.28   +1.4",
        "cold start, MTP-3                  61.87  60.00  -1.87   -3.0",
    ):
        words = line.split()
        assert any(words == found.split() for found in text.splitlines()), line


def test_workloads_are_drawn_apart(tmp_path: Path) -> None:
    for workload in ("glm51_longbench", "mine"):
        for slots in (4096, 8192):
            write(tmp_path / "grid", "lru", slots, 0.1, workload=workload)
    names = {path.stem for path in draw(tmp_path / "grid").figures}
    assert names >= {"hit_rate_by_slots-mine", "hit_rate_by_slots-glm51_longbench", "published-glm51_longbench"}
    assert "published-mine" not in names


def test_a_shorter_replay_is_not_held_against_the_papers_means(tmp_path: Path) -> None:
    write(tmp_path / "short", "lru", 4096, 0.2, length=100)
    assert {path.stem for path in draw(tmp_path / "short").figures} == {"miss_rate_per_step"}
    assert "paper" not in shown(tmp_path / "short")
