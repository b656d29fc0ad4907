"""Whether systems said the same, and when that cannot be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis import agreement, frame
from harness.records import Status


def sentences(folder: Path) -> list[str]:
    experiment = frame.load(folder)
    (group,) = experiment.groups
    return agreement.sentences(agreement.check(experiment, group))


def test_exact_systems_are_counted_and_the_oracle_is_information(sweep: Path) -> None:
    assert sentences(sweep) == [
        "Fetch all: outputs equal to full KV: 62/62 requests",
        "HiSparse, sync (B=128): outputs equal to full KV: 62/62 requests",
        "No-IO oracle*: not compared (outputs invalid); 31 of 62 differ",
    ]


def test_the_first_difference_is_located(tmp_path: Path, synthetic: Any) -> None:
    synthetic.sweep(tmp_path, ["full_kv"], [2, 4])
    synthetic.write(tmp_path, synthetic.row("hisparse_sync", 2))
    changed = synthetic.requests("hisparse_sync", 4)
    changed[3].output_text = "answer X"
    synthetic.write(tmp_path, synthetic.row("hisparse_sync", 4), changed)
    (sentence,) = sentences(tmp_path)
    assert "equal to full KV: 11/12 requests" in sentence
    assert sentence.endswith("first difference: concurrency 4, prompt sha-4-3, character 7")


def test_failed_requests_missing_texts_and_failed_points_are_not_compared(tmp_path: Path, synthetic: Any) -> None:
    synthetic.sweep(tmp_path, ["full_kv"], [2])
    requests = synthetic.requests("hisparse_sync", 2)
    requests[0].error, requests[1].output_text = "timeout", ""
    synthetic.write(tmp_path, synthetic.row("hisparse_sync", 2), requests)
    failed = synthetic.row("fetch_all", 2, status=Status.FAILED, reason="died", measures={})
    synthetic.write(tmp_path, failed, synthetic.requests("fetch_all", 2))
    assert sentences(tmp_path) == [
        "Fetch all: outputs not compared with full KV (no text for the same prompt)",
        "HiSparse, sync (B=128): outputs equal to full KV: 2/2 requests",
    ]


def test_the_same_prompt_twice_is_paired_in_order(tmp_path: Path, synthetic: Any) -> None:
    for system in ("full_kv", "hisparse_sync"):
        requests = synthetic.requests(system, 2)
        for request in requests:
            request.prompt_sha = "same"
        synthetic.write(tmp_path, synthetic.row(system, 2), requests)
    assert sentences(tmp_path) == ["HiSparse, sync (B=128): outputs equal to full KV: 4/4 requests"]


def test_without_full_kv_the_first_exact_system_is_the_reference(tmp_path: Path, synthetic: Any) -> None:
    synthetic.sweep(tmp_path, ["no_io_oracle", "hisparse_sync", "fetch_all"], [2])
    assert sentences(tmp_path) == [
        "HiSparse, sync (B=128): outputs equal to Fetch all: 4/4 requests",
        "No-IO oracle*: not compared (outputs invalid); 2 of 4 differ",
    ]


def test_sampled_outputs_are_not_compared(tmp_path: Path, synthetic: Any) -> None:
    for system in ("full_kv", "hisparse_sync"):
        synthetic.write(tmp_path, synthetic.row(system, 2), config=synthetic.config(temperature=0.7))
    assert sentences(tmp_path) == ["outputs not compared: that needs greedy decoding, and the temperature is 0.7"]


def test_an_unknown_temperature_is_not_taken_for_greedy(tmp_path: Path, synthetic: Any) -> None:
    for system in ("full_kv", "hisparse_sync"):
        synthetic.write(tmp_path, synthetic.row(system, 2), config="name: demo\n")
    assert "the temperature is unknown" in sentences(tmp_path)[0]


def test_one_system_alone_has_nothing_to_agree_with(tmp_path: Path, synthetic: Any) -> None:
    synthetic.sweep(tmp_path, ["full_kv"], [2])
    assert sentences(tmp_path) == ["outputs not compared: there is one system only"]
