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


def differing(folder: Path, synthetic: Any, config: str) -> list[str]:
    for system in ("full_kv", "fetch_all", "hisparse_sync"):
        requests = synthetic.requests(system, 2)
        requests[0].output_text += "" if system == "full_kv" else "!"
        synthetic.write(folder, synthetic.row(system, 2), requests, config=config)
    return sentences(folder)


def test_what_may_explain_several_differences_is_said_once_and_last(tmp_path: Path, synthetic: Any) -> None:
    found = differing(tmp_path, synthetic, synthetic.config() + "engine:\n  batch_invariant: false\n")
    assert len(found) == 3
    assert all(sentence.endswith("prompt sha-2-0, character 8") for sentence in found[:2])
    assert found[2].startswith("greedy text may differ where batches are composed differently")


def test_rounding_is_no_excuse_with_batch_invariance(tmp_path: Path, synthetic: Any) -> None:
    found = differing(tmp_path, synthetic, synthetic.config() + "engine:\n  batch_invariant: true\n")
    assert len(found) == 2


def test_one_request_is_not_requests(tmp_path: Path, synthetic: Any) -> None:
    for system in ("full_kv", "fetch_all"):
        synthetic.write(tmp_path, synthetic.row(system, 1), synthetic.requests(system, 1)[:1])
    assert sentences(tmp_path) == ["Fetch all: outputs equal to full KV: 1/1 request"]
