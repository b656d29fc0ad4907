"""Every command line that figures 1, 4, 5 and 8 would run, by SGLang's own parser and validation.

On a machine without a GPU the parser takes all of a line. Resolution, which derives settings from model and device and
validates them together, goes as far as it does with a device that says it is sm_90 and does nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Seen:
    """What SGLang made of a cell's command."""

    config: Config
    place: Place
    answer: dict[str, Any]


@dataclass(frozen=True)
class Answers:
    planned: list[Seen]
    refused: dict[str, dict[str, Any]]  # by what was done to a line


def cells(*overrides: str) -> list[Config]:
    return load_cells(["engine=sglang", "tracker=none", *overrides])


def planned() -> list[tuple[Config, Place]]:
    """All cells of the figures that can run, and figure 1's over two nodes."""
    found = [(c, Place()) for name in FIGURES for c in cells(f"experiment={name}") if refusal(c) is None]
    (wide,) = cells("experiment=fig1", "engine.tensor_parallel=16", "offload=full_kv")
    return found + [(wide, Place(rank, 2, "10.0.0.1:5000")) for rank in range(2)]


def spoiled(config: Config) -> dict[str, Launch]:
    """The line of a cell with HiSparse, with one thing changed that the release does not take."""
    command = launch(config, port=31000)
    words = command.arguments

    def changed(*arguments: str) -> Launch:
        return Launch(arguments, command.env)

    return {
        "mixed": changed(*words, "--enable-mixed-chunk"),
        "cached": changed(*(word for word in words if word != "--disable-radix-cache")),
        "other backend": changed(*(word.replace("flashmla_sparse", "flashmla_kv") for word in words)),
    }


def on_qwen() -> Launch:
    """HiSparse on Qwen3, which this project calls infeasible."""
    (config,) = cells(
        *("experiment=fig1", "selector=dense", "model=qwen3_30b_a3b", "platform=gh200"),
        *("offload=hisparse_sync", "offload.cache_slots=null"),
    )
    assert "not qwen3_30b_a3b" in (refusal(config) or "")
    write_config_folder(config)
    command = launch(config, port=31000)
    return Launch((*command.arguments, "--device", "cpu", "--attention-backend", "torch_native"), command.env)


@pytest.fixture(scope="module")
def answers(sglang_python: str, cpu_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """All in one process: importing SGLang takes longer than everything else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HISPARSE_CACHE", str(tmp_path_factory.mktemp("cache")))
        known = planned()
        for config, _ in known:
            write_config_folder(config)
        bad = spoiled(next(config for config, _ in known if config.offload.system.offloads)) | {"qwen": on_qwen()}
        commands = [launch(config, place, port=31000) for config, place in known]
        found = look([*commands, *bad.values()], sglang_python, cpu_env)
        assert len(found) == len(known) + len(bad) and len(known) > 12
        seen = [Seen(config, place, answer) for (config, place), answer in zip(known, found, strict=False)]
        yield Answers(seen, dict(zip(bad, found[len(known) :], strict=True)))


def test_each_is_parsed_to_what_the_cell_says(answers: Answers) -> None:
    for one in answers.planned:
        config, answer, ranks = one.config, one.answer, one.config.engine.data_parallel or 1
        assert answer["parsed"], config.offload.system
        assert answer["tp_size"] == config.engine.tensor_parallel and answer["attn_dp_size"] == ranks
        assert answer["max_running_requests"] == config.engine.max_running_requests * ranks
        assert answer["context_length"] == config.context_len
        assert answer["disable_radix_cache"] is True and answer["incremental_streaming_output"] is True
        assert (answer["nnodes"], answer["node_rank"]) == (one.place.num_nodes, one.place.node_rank)
        assert answer["enable_hisparse"] is config.offload.system.offloads
        if config.offload.system.offloads:
            assert answer["hisparse"] == {
                "top_k": config.selector.top_k,
                "device_buffer_size": config.offload.cache_slots,
                "host_to_device_ratio": config.engine.host_to_device_ratio,
            }


def test_each_goes_through_sglangs_own_validation(answers: Answers) -> None:
    stopped = [(s.config.name, s.config.offload.system, s.answer["stopped"]) for s in answers.planned]
    assert [one for one in stopped if one[2] is not None] == []


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("mixed", "mixed-chunk"),
        ("cached", "requires --disable-radix-cache"),
        ("other backend", "flashmla"),
        ("qwen", "--enable-hisparse is only supported for DSA"),
    ],
)
def test_the_validation_is_one_that_refuses(answers: Answers, what: str, said: str) -> None:
    """What the harness sets for HiSparse is what the release asks for, and what it calls infeasible is refused."""
    answer = answers.refused[what]
    assert answer["parsed"] and said in (answer["stopped"] or "it went through")
