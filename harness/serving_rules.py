"""What `engine=sglang` and `engine=external` derive and refuse: part of `harness.validate`.

What a user asks for that contradicts itself is refused here. What SGLang's release cannot do, such as Quest, is
`harness.instances.sglang_limits`: in an experiment such cells are rows of status `infeasible` beside those that run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from urllib.parse import urlsplit

from harness.schema import Config, Device, EngineConfig, EngineKind, OffloadConfig, Prefetch, Staging

DEFAULT_RATIO = 2.0  # SGLang's host_to_device_ratio where none is given
# What a launch says by itself; `engine.server_args` may not. Flag -> what to set instead.
OWN_FLAGS = {
    "model-path": "model.weights",
    "model": "model.weights",
    "load-format": "model.weights",
    "host": "engine.host",
    "port": "engine.port",
    "context-length": "engine.context_len",
    "mem-fraction-static": "engine.memory_fraction",
    "max-total-tokens": "engine.device_kv_budget",
    "max-running-requests": "engine.max_running_requests",
    "chunked-prefill-size": "engine.prefill_chunk_tokens",
    "schedule-conservativeness": "engine.schedule_conservativeness",
    "tp-size": "engine.tensor_parallel",
    "tensor-parallel-size": "engine.tensor_parallel",
    "pp-size": "engine.pipeline_parallel",
    "pipeline-parallel-size": "engine.pipeline_parallel",
    "dp-size": "engine.data_parallel",
    "data-parallel-size": "engine.data_parallel",
    "attn-dp-size": "engine.data_parallel",
    "attention-data-parallel-size": "engine.data_parallel",
    "enable-dp-attention": "engine.data_parallel",
    "nnodes": "engine.tensor_parallel and platform.num_devices",
    "node-rank": "engine.tensor_parallel and platform.num_devices",
    "dist-init-addr": "engine.tensor_parallel and platform.num_devices",
    "enable-hisparse": "offload",
    "hisparse-config": "offload.cache_slots and engine.host_to_device_ratio",
    "hierarchical-sparse-attention-extra-config": "offload.cache_slots and engine.host_to_device_ratio",
    "device": "platform",
    "served-model-name": "model.name",
    "api-key": "nothing: the load generator sends no key",
    "admin-api-key": "nothing: the harness sends no key",
    "config": "flags one by one",
}
OWN_ENV = ("SGLANG_DISABLE_HISPARSE_PREFETCH", "SGLANG_DEBUG_HISPARSE_SKIP_IO")
NEVER = {  # what would make the comparison another one
    "enable-mixed-chunk": "HiSparse does not go with mixed chunks, and every system must be scheduled alike",
    "enable-hierarchical-cache": "a prefix cache in host memory would answer for prompts that are to be computed",
}
_SGLANG_KEYS = ("tensor_parallel", "pipeline_parallel", "python", "server_args", "env")


def complete_serving(config: Config) -> str | None:
    """Fill what is derived in place; the first thing that is wrong, else None."""
    engine, default = config.engine, EngineConfig()
    if engine.kind is not EngineKind.external:
        engine.url = None
    if engine.kind is not EngineKind.sglang:
        for key in _SGLANG_KEYS:
            setattr(engine, key, getattr(default, key))
        if engine.kind is not EngineKind.external:
            if config.model.weights.startswith("hf:"):
                return (
                    f"model.weights={config.model.weights} is a name only a server knows: engine={engine.kind.value} "
                    "takes random, fetch:NAME or a Hugging Face folder"
                )
            return None
    problems = _sglang(config) if engine.kind is EngineKind.sglang else _external(config)
    return next(problems, None)


def _sglang(config: Config) -> Iterator[str]:
    engine, platform = config.engine, config.platform
    if engine.tensor_parallel is None:
        if platform.num_devices % engine.pipeline_parallel:
            yield (
                f"engine.pipeline_parallel={engine.pipeline_parallel} must divide platform.num_devices="
                f"{platform.num_devices}, or engine.tensor_parallel must be given"
            )
        engine.tensor_parallel = platform.num_devices // engine.pipeline_parallel
    if engine.data_parallel is None:
        engine.data_parallel = engine.tensor_parallel
    if engine.tensor_parallel % engine.data_parallel:
        yield (
            f"engine.data_parallel={engine.data_parallel} must divide engine.tensor_parallel={engine.tensor_parallel}: "
            "a rank of data-parallel attention is a part of the tensor-parallel group"
        )
    if config.devices > platform.num_devices and config.devices % platform.num_devices:
        yield (
            f"engine.tensor_parallel x engine.pipeline_parallel = {config.devices} devices do not fill whole nodes of "
            f"platform.num_devices={platform.num_devices}"
        )
    if config.offload.system.offloads:
        engine.host_to_device_ratio = engine.host_to_device_ratio or DEFAULT_RATIO
        engine.staging = Staging.full_pages
        config.offload.cold_start = OffloadConfig().cold_start
        if engine.host_to_device_ratio % 1:
            yield f"engine.host_to_device_ratio={engine.host_to_device_ratio:g}: SGLang takes whole numbers"
    if config.offload.prefetch is Prefetch.speculative:
        yield "offload.prefetch=speculative is the native engine's: SGLang prefetches exactly or not at all"
    if engine.batch_invariant:
        yield "engine.batch_invariant is the native engine's: leave it false with engine=sglang"
    if config.trace.record:
        yield "trace.record=true is the native engine's: leave it false with engine=sglang"
    yield from _flags(engine.server_args)
    yield from _environment(engine.env)


def flags_of(server_args: list[str]) -> list[str]:
    """`engine.server_args` as arguments of a command. Raises ValueError for an unclosed quote."""
    return [word for text in server_args for word in shlex.split(text)]


def _flags(server_args: list[str]) -> Iterator[str]:
    for text in server_args:
        try:
            words = shlex.split(text)
        except ValueError as error:
            yield f"engine.server_args: {text!r}: {error}"
            return
        if not words or not words[0].startswith("--"):
            yield f"engine.server_args: {text!r} must be one flag and its value, such as --moe-runner-backend triton"
            return
        name = words[0].removeprefix("--").partition("=")[0].replace("_", "-")
        if name in OWN_FLAGS:
            yield f"engine.server_args: --{name} is set by the harness; set {OWN_FLAGS[name]} instead"
        if name in NEVER:
            yield f"engine.server_args: --{name} cannot be used here: {NEVER[name]}"


def _environment(env: list[str]) -> Iterator[str]:
    for text in env:
        name, equals, _ = text.partition("=")
        if not equals or not name.isidentifier():
            yield f"engine.env: {text!r} must be NAME=VALUE"
        elif name in OWN_ENV:
            yield f"engine.env: {name} is set by the harness from offload"


def _external(config: Config) -> Iterator[str]:
    engine = config.engine
    if engine.url is None:
        yield "engine.url must be set for engine=external, such as engine.url=http://host:8000"
        return
    parts = urlsplit(engine.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield f"engine.url={engine.url} must be the base URL of a server, such as http://host:8000"
    elif parts.username or parts.password or parts.query:
        yield "engine.url is written to result files: it must hold no user name, password or query"
    engine.url = engine.url.rstrip("/").removesuffix("/v1")
    if config.trace.record:
        yield "trace.record=true is the native engine's: leave it false with engine=external"
    if config.platform.device is Device.cuda:
        yield "platform.device=cuda is where the native engine computes; a server elsewhere needs none: platform=cpu"
