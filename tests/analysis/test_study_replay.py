"""Replayed selections from rows: what is drawn, what is tabled, and the papers' rates beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    steps: list[float] | None = None,
    status: Status = Status.OK,
) -> None:
    per_step = steps or np.full(length, rate).tolist()
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
    encoded = store.encode_steps(
        {"step": range(len(per_step)), "miss_rate": per_step, "sequences": [1] * len(per_step)}
    )
    config = f"replay: {{empty: {str(empty).lower()}, parameters: []}}\n"
    store.write_point(folder, row, [], config_yaml=config, env={}, server_log="", files={store.STEPS_FILE: encoded})


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
    assert "staging 31.00% > FIFO 17.00% > random 16.50% > LRU 13.40% > Bélády 8.00%" in " ".join(text.split())
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
        *("staging", "FIFO, B=4,096", "random, B=4,096", "LRU, B=4,096", "Bélády, B=4,096"),
        *("LRU, B=8,192", "Bélády, B=8,192"),
    }
    stars = sorted(float(line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "*")
    assert stars == sorted(float(v) / 100 for v in published.rows("fig6")["value"])
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "LRU, B=4,096: 13.4% (paper 13.4%)" in said and "Bélády, B=8,192: 3.5%" in said
    (by_slots,) = plots["hit_rate_by_slots"].axes
    (lru,) = [line for line in by_slots.lines if line.get_gid() == "LRU"]
    assert list(lru.get_xdata()) == [4096, 8192] and list(lru.get_ydata()) == pytest.approx([0.866, 0.93])


def _stars(axes: Any) -> dict[str, Any]:
    """The published marks by the words of their cache."""
    return {gid[11:]: line for line in axes.lines if (gid := line.get_gid() or "").startswith("_published ")}


def test_every_published_rate_is_told_apart(folder: Path) -> None:
    """By colour and place; staging, which has no B, stands at the edge and at no B."""
    rows = store.read_rows(folder)
    plots = {plot.name: plot.figure for plot in replay.study(rows[rows["status"] == "ok"]).plots}
    for name in ("miss_rate_per_step", "hit_rate_by_slots"):
        figure = plots[name]
        figure.canvas.draw()
        (axes,) = figure.axes
        stars = _stars(axes)
        assert set(stars) == {
            *("staging", "FIFO, B=4,096", "random, B=4,096", "LRU, B=4,096", "Bélády, B=4,096", "LRU, B=8,192")
        }
        ours = {line.get_gid(): line.get_color() for line in axes.lines}
        places = []
        for words, star in stars.items():
            assert star.get_color() == ours[words if words in ours else words.split(",")[0]]
            places.append(star.get_transform().transform((star.get_xdata()[0], star.get_ydata()[0])))
        apart = [float(np.hypot(*(a - b))) for i, a in enumerate(places) for b in places[:i]]
        assert min(apart) > 7 * figure.dpi / 72  # a star is 7 points wide
    by_slots = plots["hit_rate_by_slots"].axes[0]
    left, right = (by_slots.transData.transform((x, 0.8))[0] for x in (4096, 8192))
    at = {w: s.get_transform().transform((s.get_xdata()[0], 0.8))[0] for w, s in _stars(by_slots).items()}
    assert at["staging"] < left < at["FIFO, B=4,096"] < right < at["LRU, B=8,192"]


def test_the_first_step_makes_no_cliff(tmp_path: Path) -> None:
    """It misses all and is not drawn; what is drawn of the rest lies within what the steps do."""
    write(tmp_path / "steps", "lru", 4096, 0.2, steps=[1.0] + [0.1, 0.3] * 30)
    rows = store.read_rows(tmp_path / "steps")
    (plot,) = [p for p in replay.study(rows).plots if p.name == "miss_rate_per_step"]
    (line,) = [line for line in plot.figure.axes[0].lines if line.get_gid() == "LRU, B=4,096"]
    x, y = np.array(line.get_xdata()), np.array(line.get_ydata())
    assert x[0] == 2 and len(x) == 60
    assert y[12:-12] == pytest.approx(np.full(36, 0.2), abs=0.006) and abs(np.diff(y[3:-3])).max() < 0.05
    assert "the first misses 40%" in plot.caption


def test_avsgs_rates(tmp_path: Path) -> None:
    folder = tmp_path / "avsg_reuse"
    write(folder, "staging", 2048, 0.2008, workload="glm53_agent", steps=[1.0] + [0.2] * 999)  # reuse has no first
    write(folder, "avsg", 4096, 0.10, workload="glm53_agent")
    write(folder, "avsg", 8192, 0.06, workload="glm53_agent")
    write(folder, "avsg", 8192, 0.08, workload="glm53_agent", tokens=4, empty=True)
    text = shown(folder)
    for line in (
        "adjacent-step reuse                81.61  80.00  -1.61   -2.0",
        "hit rate, AVSG, B=4,096            88.72  90.00  +1.28   +1.4",
        "cold-start reuse, MTP-3            61.87  60.00  -1.87   -3.0",
    ):
        words = line.split()
        assert any(words == found.split() for found in text.splitlines()), line
    rows = store.read_rows(folder)
    (by_slots,) = [p.figure.axes[0] for p in replay.study(rows).plots if p.name == "hit_rate_by_slots"]
    stars = {words: float(line.get_ydata()[0]) for words, line in _stars(by_slots).items()}
    assert stars == pytest.approx({"staging": 0.8161, "AVSG, B=4,096": 0.8872, "AVSG, B=8,192": 0.9483})


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
