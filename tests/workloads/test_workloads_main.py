"""`python -m workloads`: what it writes, what it prints, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from workloads.__main__ import _reuse, main
from workloads.replay import ReplayConfig, replay
from workloads.traces import Trace
from workloads.traces.shipped import find_trace


def test_generate_inspect_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "g.trace"
    command = ["generate", "glm51_longbench", "--layers", "1", "--steps", "5", "--requests", "2", "--out", str(out)]
    assert main(command) == 0
    trace = Trace(out)
    assert (trace.header.source, trace.header.top_k, trace.prompt_len) == ("synthetic", 2048, 100_384)
    assert trace.streams == [(0, 0), (1, 0)] and trace.most_steps == 5
    assert main(["inspect", str(out)]) == 0
    said = capsys.readouterr().out
    assert "2 requests, 1 layers, 10 selections of 2,048.0 positions; prompt 100,384, 5 steps" in said
    assert "whole; adjacent-step reuse 6" in said  # about 69%
    assert main(["replay", str(out), "--policy", "lru,staging", "--slots", "4096,8192"]) == 0
    said = capsys.readouterr().out
    configs = [ReplayConfig("lru", 4096), ReplayConfig("lru", 8192), ReplayConfig("staging", 4096)]
    for result in replay((trace.blocks(*key) for key in trace.streams), configs):
        assert f"{100 * result.miss_rate:.2f}%" in said
    assert "million selections a second" in said


def test_the_shipped_trace_is_whole_and_real(capsys: pytest.CaptureFixture[str]) -> None:
    """400 steps of SmolLM2 with Quest: pages of 16 come and go whole, and the newest page is always there."""
    assert main(["inspect", "shipped:smollm2_quest"]) == 0
    assert "native, smollm2_135m, quest, k=256" in capsys.readouterr().out
    trace = Trace(find_trace("shipped:smollm2_quest"))
    assert trace.layers == list(range(30)) and trace.most_steps == 400
    stream = trace.stream(0, 11)
    for row, length in zip(stream.selections, stream.context_lens, strict=True):
        taken = np.sort(row[row >= 0])
        pages, counts = np.unique(taken // 16, return_counts=True)
        assert len(pages) == 16 and pages[-1] == (length - 1) // 16
        assert (counts[:-1] == 16).all() and counts[-1] == (length - 1) % 16 + 1
    assert "/" not in str(trace.header.provenance["config"]["workload"]["files"])


def test_the_shipped_exact_topk_trace_is_cut_to_every_third_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "shipped:smollm2_exact_topk"]) == 0
    assert "native, smollm2_135m, exact_topk, k=256" in capsys.readouterr().out
    trace = Trace(find_trace("shipped:smollm2_exact_topk"))
    assert trace.layers == list(range(0, 30, 3)) and trace.most_steps == 400
    assert (trace.stream(0, 3).selections >= 0).all()
    assert main(["cut", "shipped:smollm2_exact_topk", "--every", "6", "--out", str(tmp_path / "less.trace")]) == 0
    less = Trace(tmp_path / "less.trace")
    assert less.layers == [0, 6, 12, 18, 24]
    for layer in less.layers:
        assert (less.stream(0, layer).selections == trace.stream(0, layer).selections).all()


def test_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "t.jsonl", tmp_path / "o.trace"
    line = {"request_id": 0, "layer_id": 3, "seq_len_current": 9, "selected_token_pos": [8, 2, 5]}
    source.write_text(json.dumps(line) + "\n" + json.dumps({**line, "seq_len_current": 10}) + "\n")
    assert main(["import", "dsa", str(source), "--model", "deepseek-v3.2", "--out", str(out)]) == 0
    assert Trace(out).stream(0, 3).selections.tolist() == [[8, 2, 5], [8, 2, 5]]
    assert main(["import", "sglang", str(source), "--model", "m", "--out", str(out)]) == 2
    assert "needs --layers and --top-k" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["inspect", "/nowhere"], "/nowhere: no such trace"),
        (["replay", "shipped:smollm2_quest", "--policy", "magic"], "policy=magic is none of lru"),
        (["replay", "shipped:smollm2_quest", "--slots", "many"], "--slots: many is no whole number"),
        (["replay", "shipped:smollm2_quest", "--slots", "100", "--policy", "lru"], "do not fit cache_slots=100"),
        (["generate", "nothing", "--out", "x"], "workload=nothing"),
    ],
)
def test_refusals(command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1


NO_FILES = {
    "bytes": b"\xff\xfe\x00\x81" * 50,
    "empty": b"",
    "list": b"[]",
    "object": b"{}",
    "deep": b"[" * 100_000,
    "layer": b'{"request_id": 1, "layer_id": 99999999999, "seq_len_current": 3, "selected_token_pos": [1]}',
    "positions": b'{"request_id": 1, "layer_id": 0, "seq_len_current": 3, "selected_token_pos": [null]}',
    "counts": b'{"meta_info": {"indexer_topk": "AAAA", "prompt_tokens": 1, "completion_tokens": []}}',
}


@pytest.mark.parametrize("content", list(NO_FILES))
@pytest.mark.parametrize("kind", ["sglang", "dsa"])
def test_a_file_of_another_kind_is_refused_by_name(tmp_path, capsys, kind, content):
    file, out = tmp_path / "given", tmp_path / "out"
    file.write_bytes(NO_FILES[content])
    shape = ["--layers", "2", "--top-k", "2"] if kind == "sglang" else []
    assert main(["import", kind, str(file), "--model", "m", "--out", str(out), *shape]) == 2
    error = capsys.readouterr().err
    assert str(file) in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "command", [["generate", "glm51_longbench", "--layers", "1"], ["cut", "shipped:smollm2_quest", "--every", "9"]]
)
def test_a_place_that_cannot_be_written_is_refused_by_name(tmp_path, capsys, command):
    out = tmp_path / "none" / "x.trace"
    assert main([*command, "--out", str(out)]) == 2
    assert capsys.readouterr().err == f"error: {out}: cannot be written (No such file or directory)\n"


def test_reuse_is_what_staging_keeps() -> None:
    """One number for adjacent-step reuse, wherever it is printed."""
    trace = Trace(find_trace("shipped:smollm2_quest"))
    (result,) = replay([trace.blocks(0, 3)], [ReplayConfig("staging", trace.header.top_k)])
    stream = trace.stream(0, 3)
    found = _reuse(stream.selections, stream.context_lens)
    assert len(found) == len(result.per_step()) - 1
    assert found == pytest.approx(1 - result.per_step()[1:])
