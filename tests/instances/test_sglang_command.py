"""From cells to SGLang's command lines: settings of the release (0.5.23) and of the authors' launch."""

from __future__ import annotations

import json
import shlex

import pytest

from harness.config import load_cells
from harness.instances.base import Place
from harness.instances.sglang_command import Launch, launch
from harness.instances.sglang_limits import pool_bytes, refusal
from harness.schema import Config
from harness.validate import ConfigError

QWEN = ("model=qwen3_30b_a3b", "platform=gh200", "offload.cache_slots=null")
SGLANG = ("engine=sglang", "tracker=none")


def cells(experiment: str, *overrides: str) -> list[Config]:
    return load_cells([f"experiment={experiment}", *SGLANG, *overrides])


def cell(experiment: str, *overrides: str) -> Config:
    (one,) = cells(experiment, *overrides)
    return one


def flags(command: Launch) -> dict[str, str]:
    """--name value pairs; flags without a value have ''."""
    words, found, name = list(command.arguments[2:]), {}, ""
    for word in words:
        if word.startswith("--"):
            name = word
            found[name] = ""
        else:
            found[name] = word
    return found


def test_the_authors_launch_of_glm51() -> None:
    """tp 8 with DP attention of 8, chunked prefill 65536 and 480 running in all, memory fraction 0.85, radix cache off,
    B=4096, ratio 8."""
    found = flags(launch(cell("fig1", "offload=hisparse_sync"), port=31000))
    expected = {
        "--tp-size": "8",
        "--attn-dp-size": "8",
        "--chunked-prefill-size": "65536",
        "--max-running-requests": "480",
        "--mem-fraction-static": "0.85",
        "--disable-radix-cache": "",
        "--enable-hisparse": "",
        "--kv-cache-dtype": "bfloat16",
        "--dsa-prefill-backend": "flashmla_sparse",
        "--dsa-decode-backend": "flashmla_sparse",
        "--port": "31000",
    }
    assert found.items() >= expected.items()
    settings = json.loads(found["--hisparse-config"])
    assert settings == {
        "top_k": 2048,
        "device_buffer_size": 4096,
        "host_to_device_ratio": 8,
        "swap_in_block_size": 960,
    }
    assert "--max-total-tokens" not in found  # SGLang sizes its pools from the fraction
    assert "--nnodes" not in found


def test_systems_of_figure_8_differ_in_what_they_are_alone() -> None:
    by_system = {c.offload.system.value: launch(c) for c in cells("fig8")}
    off, skip = "SGLANG_DISABLE_HISPARSE_PREFETCH", "SGLANG_DEBUG_HISPARSE_SKIP_IO"
    has = {name: (command.env.get(off), command.env.get(skip)) for name, command in by_system.items()}
    assert has == {
        "full_kv": (None, None),
        "hisparse_sync": ("1", None),
        "hisparse_prefetch": (None, None),
        "no_io_oracle": (None, "1"),
    }
    offloaded = [command.arguments for name, command in by_system.items() if name != "full_kv"]
    assert len(set(offloaded)) == 1
    plain = flags(by_system["full_kv"])
    assert not [name for name in plain if "hisparse" in name or "backend" in name]
    assert flags(by_system["hisparse_sync"]).items() >= plain.items()


def test_an_oracle_without_reused_slots_prefetches_nothing() -> None:
    (one,) = cells("fig8", "offload=no_io_oracle", "offload.prefetch=none")
    assert launch(one).env["SGLANG_DISABLE_HISPARSE_PREFETCH"] == "1"


def test_nodes_are_filled_by_tensor_and_pipeline_parallelism() -> None:
    one = cell("fig1", "offload=full_kv", "engine.tensor_parallel=8", "engine.pipeline_parallel=2")
    assert (one.devices, one.num_nodes, one.engine.data_parallel) == (16, 2, 8)
    lines = [flags(launch(one, Place(rank, 2, "10.0.0.1:5000"))) for rank in range(2)]
    assert [line["--node-rank"] for line in lines] == ["0", "1"]
    assert {line["--nnodes"] for line in lines} == {"2"}
    assert {line["--dist-init-addr"] for line in lines} == {"10.0.0.1:5000"}
    assert {line["--pp-size"] for line in lines} == {"2"}
    # two nodes hold the weights once: each device has half of them, and more room for KV
    assert int(one.engine.device_kv_budget) > int(cell("fig1", "offload=full_kv").engine.device_kv_budget)


def test_a_budget_in_bytes_becomes_tokens() -> None:
    one = cell("fig1", "offload=full_kv", "engine.device_kv_budget=8GB")
    tokens = int(flags(launch(one))["--max-total-tokens"])
    per_token = 78 * (1152 + 132)  # bytes: a record, and an index key with its scale (reference: 132 B)
    assert tokens == pool_bytes(one)[0] == pytest.approx(8e9 / per_token, rel=0.01)


def test_the_indexers_keys_of_the_host_pool_stay_on_the_device() -> None:
    """The GPU-memory trap of the release: state for ratio x tokens. GLM-5.1 at ratio 8: 78 x (1152 + 8 x 132) bytes."""
    one = cell("fig1", "offload=hisparse_sync")
    tokens, device, host = pool_bytes(one)
    assert device == pytest.approx(tokens * 78 * (1152 + 8 * 132), rel=0.02)
    assert host == pytest.approx(8 * 8 * tokens * 78 * 1152, rel=1e-6)  # eight ranks, each eight times its tokens


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("fig1", *QWEN, "selector=quest", "selector.top_k=2048", "offload=full_kv"), "has no selector quest"),
        (("fig1", *QWEN, "selector=dense", "offload=hisparse_sync"), "DeepSeek-V4"),
        (("fig8", "offload=fetch_all"), "no offload without a device cache"),
        (("fig8", "offload=full_kv", "selector=dense"), "with its indexer only"),
        (("fig8", "offload=full_kv", "selector.top_k=1024"), "as many as the model says"),
        (("fig8", "offload=hisparse_sync", "offload.cache_slots=40000"), "16 bits"),
        (("fig8", "offload=hisparse_sync", "engine.host_to_device_ratio=64"), "lower the ratio"),
        (
            (
                *("fig8", "offload=hisparse_prefetch", "engine.tensor_parallel=8", "engine.pipeline_parallel=2"),
                "workload.input_len=4096",
            ),
            "no prefetch with pipeline parallelism",
        ),
    ],
)
def test_what_the_release_cannot_do_has_a_reason(overrides: tuple[str, ...], words: str) -> None:
    ours = cells(*overrides)
    assert ours
    for one in ours:
        assert words in (refusal(one) or "")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("engine.server_args=['--enable-mixed-chunk']", "mixed chunks"),
        ("engine.server_args=['--tp-size 4']", "set engine.tensor_parallel instead"),
        ("engine.server_args=['--hisparse_config x']", "set offload.cache_slots"),
        ("engine.server_args=['tp']", "one flag and its value"),
        ("engine.server_args=['--a \"b']", "No closing quotation"),
        ("engine.env=[SGLANG_DEBUG_HISPARSE_SKIP_IO]", "NAME=VALUE"),
        ("engine.env=['SGLANG_DEBUG_HISPARSE_SKIP_IO=1']", "set by the harness"),
        ("engine.data_parallel=3", "must divide engine.tensor_parallel=8"),
        ("engine.tensor_parallel=12", "do not fill whole nodes"),
        ("engine.host_to_device_ratio=1.5", "whole numbers"),
        ("offload.cache_slots=1024", "smaller than k=2048"),
        ("offload.prefetch=speculative", "cannot run with"),
        ("trace.record=true", "native engine's"),
        ("engine.batch_invariant=true", "native engine's"),
    ],
)
def test_contradictions_are_refused_in_one_line(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cells("fig8", "offload=hisparse_sync", override)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_named_weights_are_the_servers_business() -> None:
    found = flags(launch(cell("fig1", "offload=full_kv", "model.weights='hf:zai-org/GLM-5.1-FP8'")))
    assert found["--model-path"] == "zai-org/GLM-5.1-FP8"
    assert "--load-format" not in found and "--skip-tokenizer-init" not in found
    with pytest.raises(ConfigError, match="only a server knows"):
        load_cells(["experiment=fig1", "tracker=none", "model.weights='hf:zai-org/GLM-5.1-FP8'"])


def test_a_shell_reads_the_command_as_it_is_run() -> None:
    command = launch(cell("fig8", "offload=no_io_oracle"), port=1)
    words = shlex.split(command.as_shell("python"))
    start = words.index("python")
    assert words[start + 1 :] == list(command.arguments)
    assert dict(word.split("=", 1) for word in words[:start]) == dict(command.env)


@pytest.mark.parametrize(
    ("url", "words"), [("null", "must be set"), ("host:80", "base URL"), ("'http://u:p@h'", "no user")]
)
def test_an_external_server_needs_a_url(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_cells(["experiment=quickstart", "engine=external", "offload=full_kv", f"engine.url={url}", "tracker=none"])
