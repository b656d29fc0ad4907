"""The whole: files written, the page, the command."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.draw import Drawn, draw
from harness.records import Status


class Page(HTMLParser):
    """Tags, texts and everything a browser would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def page(drawn: Drawn) -> Page:
    return Page(drawn.report.read_text(encoding="utf-8"))


def test_figures_and_report_are_written_beside_the_points(drawn: Drawn) -> None:
    names = ["overview", "throughput", "ttft", "tpot", "running"]
    assert [path.name for path in drawn.figures] == [f"{n}.{s}" for n in names for s in ("pdf", "png")]
    assert {path.parent for path in [*drawn.figures, drawn.report]} == {drawn.report.parent}
    assert drawn.report.parent.name == "figures"
    assert drawn.report.parent.parent.name == "demo"
    assert all(path.stat().st_size > 5000 for path in [*drawn.figures, drawn.report])


def test_the_page_loads_nothing(page: Page) -> None:
    assert len(page.loaded) == 4
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.loaded)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)


def test_the_embedded_pictures_load_nothing_either(page: Page) -> None:
    for address in page.loaded:
        svg = base64.b64decode(address.partition(",")[2]).decode()
        assert "<svg" in svg
        links = re.findall(r'(?:href|src)="([^"]*)"', svg)
        assert links
        assert all(link.startswith("#") for link in links)


def test_the_page_says_what_a_reader_needs(page: Page) -> None:
    for words in [
        "A <synthetic> sweep.",  # escaped in the source, so a browser shows it as written
        "20 points, 20 ok",
        "at 16: 1.28 times full KV at 16, 1.28 times full KV's best (62.0 tok/s at 4); running at once: 16 against 3",
        "one repeat: no spread is known",
        "python -m harness experiment=demo",
        "ran at once at most: Full KV 3; Fetch all 16; HiSparse, sync (B=128) 16; No-IO oracle* 16",
        "loadgen.actor.nice 3",
        "with one request it is that request",
        "The newest position counts as a hit",
        "outputs equal to full KV: 62/62 requests",
        "from the moment the pacing wanted the request sent (client queueing included)",
        "Its outputs are invalid",
        "cpu.model a <fast> one",
        "The source of the token counts was not recorded.",
    ]:
        assert words in page.text
    assert "nan" not in page.text.lower().split()
    assert page.tags.count("table") == 4
    assert not any(word in page.text for word in ("4711", "4712", "c0ffee"))  # of one run, not of the experiment


def test_sources_of_token_counts_and_differing_environments_are_shown(tmp_path: Path, synthetic: Any) -> None:
    synthetic.write(tmp_path, synthetic.row("full_kv", 1, count_source="usage"))
    point = synthetic.write(tmp_path, synthetic.row("full_kv", 2, count_source="continuous_usage"))
    (point / "env.json").write_text('{"python": "3.12", "gpu": null}')
    text = Page(draw(tmp_path).report.read_text(encoding="utf-8")).text
    assert "Token counts come from: continuous_usage, usage." in text
    assert "python 3.11.9 | 3.12" in text or "python 3.12 | 3.11.9" in text
    assert "gpu –" in text


def test_what_all_machines_share_is_said_once(tmp_path: Path, synthetic: Any) -> None:
    point = synthetic.write(tmp_path, synthetic.row("full_kv", 1))
    env = {
        "driver": {"host": "a", "cpu_model": "fast"},
        "loadgen": {"host": "a", "cpu_model": "fast"},
        "instance": {"machine": {"host": "b", "cpu_model": "fast"}, "server": {"config": {"seed": 1}}},
    }
    (point / "env.json").write_text(json.dumps(env))
    text = Page(draw(tmp_path).report.read_text(encoding="utf-8")).text
    assert "driver.host a" in text
    assert "instance.machine.host b" in text
    assert text.count("fast") == 1
    assert "loadgen.host" not in text
    assert "instance.server" not in text


def test_without_an_ok_point_there_is_no_figure_but_a_report_that_says_why(tmp_path: Path, synthetic: Any) -> None:
    reason = "one request needs 40 MiB & the budget is <16 MiB>"
    row = synthetic.row("full_kv", 4, status=Status.INFEASIBLE, reason=reason, measures={})
    synthetic.write(tmp_path / "demo", row)
    drawn = draw(tmp_path / "demo", tmp_path / "elsewhere")
    page = Page(drawn.report.read_text(encoding="utf-8"))
    assert drawn.figures == []
    assert drawn.report == tmp_path / "elsewhere" / "report.html"
    assert f"infeasible: {reason}" in page.text
    assert "No point is ok" in page.text
    assert page.loaded == []
    assert not (tmp_path / "demo" / "figures").exists()


def test_several_groups_get_files_of_their_own(tmp_path: Path, synthetic: Any) -> None:
    for length in (1024, 4096):
        measures = {"output_throughput": 10.0}
        row = synthetic.row("full_kv", 1, input_len=length, cell_id=f"cell-{length}", measures=measures)
        synthetic.write(tmp_path, row)
    drawn = draw(tmp_path)
    assert {path.name for path in drawn.figures} == {
        f"{name}.{suffix}"
        for name in ("throughput-input_len-1024", "throughput-input_len-4096", "context")
        for suffix in ("pdf", "png")
    }
    assert Page(drawn.report.read_text(encoding="utf-8")).tags.count("img") == 3


def test_the_command_prints_the_tables_and_where_the_files_are(
    tmp_path: Path, synthetic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.write(tmp_path / "demo", synthetic.row("full_kv", 4))
    assert main([str(tmp_path / "demo"), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "Full KV" in out
    assert f"report: {tmp_path / 'out' / 'report.html'}" in out
    assert "10 figure files" in out


def test_folders_may_be_strings(tmp_path: Path, synthetic: Any) -> None:
    synthetic.write(tmp_path / "demo", synthetic.row("full_kv", 4, measures={"output_throughput": 9.0}))
    drawn = draw(str(tmp_path / "demo"), str(tmp_path / "out"))
    assert drawn.report == tmp_path / "out" / "report.html"
    assert "1 point, 1 ok" in Page(drawn.report.read_text(encoding="utf-8")).text


def test_a_missing_folder_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "python -m harness experiment=nothing" in captured.err


def test_neither_the_store_nor_drawing_changes_what_others_use() -> None:
    code = (
        "import sys; import harness.store; assert not {'pandas', 'pyarrow', 'omegaconf'} & set(sys.modules);"
        "import matplotlib; before = dict(matplotlib.rcParams), matplotlib.rcParams._get_backend_or_none();"
        "import analysis.draw;"
        "assert before == (dict(matplotlib.rcParams), matplotlib.rcParams._get_backend_or_none());"
        "assert not {'torch', 'ray', 'transformers', 'wandb'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)
