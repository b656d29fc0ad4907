"""Every command line that figures 1, 4, 5 and 8 would run, by SGLang's own parser and validation.

On a machine without a GPU the parser takes all of a line. Resolution, which derives settings from model and device and
validates them together, goes as far as it does with a device that says it is sm_90 and does nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import HERE

from harness.config import load_cells
from harness.instances.base import Place
from harness.instances.sglang_command import Launch, launch
from harness.instances.sglang_folder import write_config_folder
from harness.instances.sglang_limits import refusal
from harness.schema import Config

FIGURES = ("fig1", "fig4", "fig5", "fig8")


def look(commands: list[Launch], python: str, env: dict[str, str]) -> list[dict[str, Any]]:
    """What SGLang makes of each, in one process of its interpreter."""
    done = subprocess.run(
        [python, str(HERE / "parse_commands.py")],
        input=json.dumps([list(command.arguments[2:]) for command in commands]),
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Config, Place]]]:
    """All cells of the figures that can run, and figure 1's over two nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HISPARSE_CACHE", str(tmp_path_factory.mktemp("cache")))
        cells = [c for name in FIGURES for c in load_cells([f"experiment={name}", "engine=sglang", "tracker=none"])]
        found = [(config, Place()) for config in cells if refusal(config) is None]
        wide = ["experiment=fig1", "engine=sglang", "tracker=none", "engine.tensor_parallel=16", "offload=full_kv"]
        found += [(config, Place(rank, 2, "10.0.0.1:5000")) for config in load_cells(wide) for rank in range(2)]
        for config, _ in found:
            write_config_folder(config)
        yield found


@pytest.fixture(scope="module")
def seen(
    planned: list[tuple[Config, Place]], sglang_python: str, cpu_env: dict[str, str]
) -> list[tuple[Config, Place, dict[str, Any]]]:
    commands = [launch(config, place, port=31000) for config, place in planned]
    answers = look(commands, sglang_python, cpu_env)
    assert len(answers) == len(commands) > 12
    return [(config, place, answer) for (config, place), answer in zip(planned, answers, strict=True)]


def test_each_is_parsed_to_what_the_cell_says(seen: list[tuple[Config, Place, dict[str, Any]]]) -> None:
    for config, place, answer in seen:
        assert answer["parsed"], config.offload.system
        ranks = config.engine.data_parallel
        assert answer["tp_size"] == config.engine.tensor_parallel and answer["attn_dp_size"] == ranks
        assert answer["max_running_requests"] == config.engine.max_running_requests * ranks
        assert answer["context_length"] == config.context_len
        assert answer["disable_radix_cache"] is True and answer["incremental_streaming_output"] is True
        assert (answer["nnodes"], answer["node_rank"]) == (place.num_nodes, place.node_rank)
        assert answer["enable_hisparse"] is config.offload.system.offloads
        if config.offload.system.offloads:
            assert answer["hisparse"] == {
                "top_k": config.selector.top_k,
                "device_buffer_size": config.offload.cache_slots,
                "host_to_device_ratio": config.engine.host_to_device_ratio,
            }


def test_each_goes_through_sglangs_own_validation(seen: list[tuple[Config, Place, dict[str, Any]]]) -> None:
    assert [(c.name, c.offload.system, a["stopped"]) for c, _, a in seen if a["stopped"] is not None] == []


def test_the_validation_is_one_that_refuses(
    planned: list[tuple[Config, Place]], sglang_python: str, cpu_env: dict[str, str]
) -> None:
    """What the harness sets for HiSparse is what the release asks for: other settings of the same line are refused."""
    command = next(launch(config, port=31000) for config, _ in planned if config.offload.system.offloads)
    words = list(command.arguments)
    mixed = Launch((*words, "--enable-mixed-chunk"), command.env)
    cached = Launch(tuple(word for word in words if word != "--disable-radix-cache"), command.env)
    other = [word.replace("flashmla_sparse", "flashmla_kv") for word in words]
    answers = look([mixed, cached, Launch(tuple(other), command.env)], sglang_python, cpu_env)
    for answer, said in zip(answers, ("mixed-chunk", "requires --disable-radix-cache", "flashmla"), strict=True):
        assert answer["parsed"] and said in answer["stopped"], answer["stopped"]


def test_sglangs_validation_hears_of_what_we_refuse(
    sglang_python: str, cpu_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HiSparse on Qwen3, which this project calls infeasible, is refused by the release itself."""
    monkeypatch.setenv("HISPARSE_CACHE", str(tmp_path))
    overrides = ["experiment=fig1", "engine=sglang", "tracker=none", "selector=dense", "model=qwen3_30b_a3b"]
    (config,) = load_cells([*overrides, "platform=gh200", "offload=hisparse_sync", "offload.cache_slots=null"])
    assert "not qwen3_30b_a3b" in (refusal(config) or "")
    write_config_folder(config)
    command = launch(config, port=31000)
    on_cpu = Launch((*command.arguments, "--device", "cpu", "--attention-backend", "torch_native"), command.env)
    (answer,) = look([on_cpu], sglang_python, cpu_env)
    assert answer["parsed"] and "--enable-hisparse is only supported for DSA" in answer["stopped"]
