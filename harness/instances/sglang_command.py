"""From a cell to SGLang's command line and environment: pure, checked against the real parser by tests/sglang.

Settings follow the authors' launch for GLM-5.1 on eight H200 (tensor parallel 8 with data-parallel attention of 8,
chunked prefill 65536 and 480 running requests in all, memory fraction 0.85, radix cache off): `max_running_requests`
and `prefill_chunk_tokens` are of one rank here, as for engine=simulated, and of all ranks there.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.instances.base import ALONE, Place
from harness.instances.sglang_folder import config_folder
from harness.instances.sglang_limits import on_gpu, pool_bytes
from harness.schema import Config, EngineConfig, Family, OffloadSystem, Prefetch
from harness.serving_rules import flags_of
from harness.simulated_rules import implied_device_budget
from harness.weights import server_name, weights_folder

MODULE = "sglang.launch_server"
SWAP_IN_BLOCK = 960  # threads of one request's resolve: the release's own default, said so that rows are of one value
SEED = 1
LOG_EVERY = 10  # decode steps between two lines of the log, from which peaks are read


@dataclass(frozen=True, slots=True)
class Launch:
    """What is run on one node: arguments after the interpreter, and what its environment has beside ours."""

    arguments: tuple[str, ...]
    env: Mapping[str, str]

    def as_shell(self, python: str) -> str:
        """As one would type it."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*assignments, shlex.quote(python), *map(shlex.quote, self.arguments)])


def launch(config: Config, place: Place = ALONE, port: int | None = None) -> Launch:
    """The command of a completed cell of engine=sglang that `sglang_limits` does not refuse.

    port: where it listens; None: `engine.port`. Writes nothing: see `sglang_folder` for random weights.
    """
    flags: dict[str, object] = {
        **_model(config),
        **_listening(config, config.engine.port if port is None else port),
        **_parallel(config, place),
        **_memory(config),
        **_device(config),
        **_offload(config),
        "disable-radix-cache": True,  # HiSparse needs it, and no system may answer from another request's KV
        "incremental-streaming-output": True,
        "enable-metrics": True,
        "decode-log-interval": LOG_EVERY,
        "random-seed": SEED,
    }
    arguments = ("-m", MODULE, *_as_arguments(flags), *flags_of(config.engine.server_args))
    return Launch(arguments, environment(config))


def environment(config: Config) -> dict[str, str]:
    """What the offload system and `engine.env` set."""
    env = dict(text.split("=", 1) for text in config.engine.env)
    if config.model.weights == "random":
        env["HF_HUB_OFFLINE"] = "1"  # there is nothing to look up
    if on_gpu(config):
        env["SGLANG_ENABLE_METRICS_DEVICE_TIMER"] = "1"  # decode seconds, for the decode-only curves
    if config.offload.system.keeps_slots and config.offload.prefetch is not Prefetch.exact:
        env["SGLANG_DISABLE_HISPARSE_PREFETCH"] = "1"
    if config.offload.system is OffloadSystem.no_io_oracle:
        env["SGLANG_DEBUG_HISPARSE_SKIP_IO"] = "1"
    return env


def _model(config: Config) -> dict[str, object]:
    """Random weights: SGLang's dummy ones, for a folder with our config.json. Without a tokenizer none is asked for."""
    name, weights = server_name(config.model.weights), weights_folder(config.model.weights)
    flags: dict[str, object] = {
        "model-path": name or str(weights or config_folder(config)),
        "served-model-name": config.model.name,
        "context-length": config.context_len,
    }
    if name is None and weights is None:
        flags |= {"load-format": "dummy", "skip-tokenizer-init": True}
    if config.model.family is not Family.csa:  # DeepSeek-V4 has a layout of its own, FP8
        flags["dtype"] = config.model.dtype.value
    return flags


def _listening(config: Config, port: int) -> dict[str, object]:
    return {"host": config.engine.host, "port": port}


def _parallel(config: Config, place: Place) -> dict[str, object]:
    engine = config.engine
    flags: dict[str, object] = {"tp-size": engine.tensor_parallel}
    if engine.pipeline_parallel > 1:
        flags["pp-size"] = engine.pipeline_parallel
    if (engine.data_parallel or 1) > 1:
        flags["attn-dp-size"] = engine.data_parallel
    if place.num_nodes > 1:
        flags |= {"nnodes": place.num_nodes, "node-rank": place.node_rank, "dist-init-addr": place.dist_init_addr}
    return flags


def _memory(config: Config) -> dict[str, object]:
    engine = config.engine
    ranks = engine.data_parallel or 1
    flags: dict[str, object] = {
        "mem-fraction-static": engine.memory_fraction,
        "max-running-requests": engine.max_running_requests * ranks,
        "chunked-prefill-size": engine.prefill_chunk_tokens * ranks,
    }
    if engine.device_kv_budget != implied_device_budget(config):  # else SGLang sizes its pools from the fraction
        flags["max-total-tokens"] = pool_bytes(config)[0]
    if engine.schedule_conservativeness != EngineConfig().schedule_conservativeness:
        flags["schedule-conservativeness"] = engine.schedule_conservativeness
    return flags


def _device(config: Config) -> dict[str, object]:
    if on_gpu(config):
        return {}
    return {"device": "cpu", "attention-backend": "torch_native", "disable-cuda-graph": True}


def _offload(config: Config) -> dict[str, object]:
    """HiSparse's flags, its KV dtype and the attention backends that go with it; for models with DSA the baseline
    has the same dtype, and the backends that SGLang chooses."""
    flags: dict[str, object] = {}
    indexed = config.model.family is Family.mla and config.model.index_num_heads is not None
    if indexed and on_gpu(config):
        flags["kv-cache-dtype"] = "bfloat16"
    if not config.offload.system.keeps_slots:
        return flags
    if indexed:
        flags |= {"dsa-prefill-backend": "flashmla_sparse", "dsa-decode-backend": "flashmla_sparse"}
    settings = {
        "top_k": config.selector.top_k,
        "device_buffer_size": config.offload.cache_slots,
        "host_to_device_ratio": int(config.engine.host_to_device_ratio or 0),
        "swap_in_block_size": SWAP_IN_BLOCK,
    }
    return flags | {
        "enable-hisparse": True,
        "hisparse-config": json.dumps({k: v for k, v in settings.items() if v is not None}),
    }


def _as_arguments(flags: Mapping[str, object]) -> Sequence[str]:
    words: list[str] = []
    for name, value in flags.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words
