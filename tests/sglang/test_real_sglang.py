"""Whole sweeps against the real SGLang 0.5.23 on the CPU: rows, counts, metrics, and nothing left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from sweep_process import SweepProcess, assert_nothing_left

from harness.records import Status
from harness.store import read_env, read_requests, read_rows

INPUT, OUTPUT = 48, 96  # long enough for all of a point to meet, however slowly they are sent
OURS = {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}


def overrides(python: str, env: dict[str, str], results: Path, *more: str) -> list[str]:
    listed = ",".join(f"'{name}={value}'" for name, value in env.items())
    return [
        *("experiment=quickstart", "engine=sglang", "selector=dense", "offload=full_kv", "tracker=none"),
        *(f"engine.python={python}", f"engine.env=[{listed}]", f"results_dir={results}", "engine.context_len=512"),
        *("engine.device_kv_budget=2MiB", "engine.host_kv_budget=0", "engine.prefill_chunk_tokens=256"),
        *("engine.memory_fraction=0.1", "engine.start_timeout_s=1200"),
        *(f"workload.input_len={INPUT}", f"workload.output_len={OUTPUT}", "load.concurrencies=[1,3]", *more),
        "load.requests_per_worker=2",
    ]


@pytest.fixture(scope="module")
def sweep(
    sglang_python: str, cpu_env: dict[str, str], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SweepProcess, Path]]:
    """One sweep of two concurrencies on real weights, ended."""
    home = tmp_path_factory.mktemp("sweep")
    model = ["model=qwen3_tiny", *shape(tiny_model)]
    run = SweepProcess(home, overrides(sglang_python, cpu_env, home / "results", *model), env=OURS)
    try:
        assert run.end() == 0, run.said()
        yield run, home / "results" / "quickstart"
    finally:
        run.kill_all()


def shape(folder: Path) -> list[str]:
    """Overrides that say what the folder's config.json says."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    keys = {
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "intermediate_size": "intermediate_size",
        "vocab_size": "vocab_size",
        "rms_norm_eps": "rms_norm_eps",
        "max_positions": "max_position_embeddings",
    }
    ours = [f"model.{key}={found[theirs]}" for key, theirs in keys.items()]
    theta = found.get("rope_theta") or found["rope_parameters"]["rope_theta"]
    tied = str(found.get("tie_word_embeddings", False)).lower()
    return [*ours, f"model.rope_theta={theta}", f"model.tie_embeddings={tied}", f"model.weights={folder}"]


def test_rows_count_what_was_asked_for(sweep: tuple[SweepProcess, Path]) -> None:
    rows = read_rows(sweep[1])
    assert dict(zip(rows["concurrency"], rows["status"], strict=True)) == {1: "ok", 3: "ok"}, rows["reason"].tolist()
    assert set(rows["engine"]) == {"sglang"} and set(rows["count_source"]) == {"continuous_usage"}
    assert (rows["total_output_tokens"] == rows["num_requests"] * OUTPUT).all()
    assert (rows["total_input_tokens"] == rows["num_requests"] * INPUT).all()
    for path in rows["point_path"]:
        requests = read_requests(path)
        assert (requests["output_tokens"] == OUTPUT).all() and (requests["prompt_tokens"] == INPUT).all()
        assert requests["output_text"].str.len().gt(0).all()  # the model has a tokenizer


def test_rows_have_the_servers_version_and_counters(sweep: tuple[SweepProcess, Path]) -> None:
    rows = read_rows(sweep[1]).set_index("concurrency")
    assert set(rows["server_version"]) == {"sglang 0.5.23"}
    for concurrency, row in rows.iterrows():
        first_tokens = row["num_requests"]  # SGLang counts them with prefill
        assert row["decode_tokens"] == row["num_requests"] * OUTPUT - first_tokens
        assert row["peak_running"] == concurrency
        # both layers, keys and values of 2 heads of 32 floats
        per_token = 2 * 2 * 2 * 32 * 4
        assert row["device_records_bytes"] % per_token == 0
        tokens = row["device_records_bytes"] / per_token
        assert INPUT <= tokens <= concurrency * (INPUT + OUTPUT)
        assert row["retractions"] == 0


def test_the_environment_and_the_log_are_kept(sweep: tuple[SweepProcess, Path]) -> None:
    rows = read_rows(sweep[1])
    for path in rows["point_path"]:
        server = read_env(path)["instance"]["server"]
        assert server["version"] == "0.5.23" and server["tp_size"] == 1
        assert server["disable_radix_cache"] is True and server["max_total_num_tokens"] == 2048
        assert server["gauges"]["max_total_num_tokens"] == 2048
        assert "Decode batch" in (Path(path) / "server.log").read_text()


def test_nothing_of_it_goes_on(sweep: tuple[SweepProcess, Path]) -> None:
    assert sweep[0].watch.ever("sglang.launch_server")
    assert_nothing_left(sweep[0])


def test_a_bad_flag_is_reported_in_sglangs_words(sglang_python: str, cpu_env: dict[str, str], tmp_path: Path) -> None:
    """With random weights: the config.json is ours too, and no tokenizer is asked for."""
    results = tmp_path / "results"
    more = ["model=qwen3_tiny", "engine.server_args=['--no-such-flag 3']", "load.concurrencies=[1]"]
    run = SweepProcess(tmp_path, overrides(sglang_python, cpu_env, results, *more), env=OURS)
    try:
        assert run.end() == 1, run.said()
        (row,) = read_rows(results / "quickstart").to_dict("records")
        assert row["status"] == Status.FAILED.value
        assert "unrecognized arguments: --no-such-flag 3" in row["reason"], row["reason"]
        assert_nothing_left(run)
    finally:
        run.kill_all()
