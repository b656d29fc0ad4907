"""Run by an interpreter that has SGLang: parses command lines as its server does, and resolves them as far as it goes.

A JSON list of argument lists on standard input; one JSON object a line on standard output: `parsed` or `error`, some
of the parsed values, and `stopped`: where resolution ended for want of a GPU, null where it went through.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

SHOWN = (
    *("model_path", "context_length", "tp_size", "pp_size", "attn_dp_size", "mem_fraction_static", "nnodes"),
    *("node_rank", "dist_init_addr", "max_running_requests", "chunked_prefill_size", "kv_cache_dtype"),
    *("enable_hisparse", "hisparse_config", "disable_radix_cache", "dsa_prefill_backend", "dsa_decode_backend"),
    *("skip_tokenizer_init", "load_format", "enable_metrics", "incremental_streaming_output"),
)


def look(argv: list[str]) -> dict[str, Any]:
    from sglang.srt.server_args import prepare_server_args

    try:
        args = prepare_server_args(argv)
    except SystemExit:
        return {"parsed": False}
    found: dict[str, Any] = {"parsed": True, **{name: getattr(args, name) for name in SHOWN}, "stopped": None}
    try:
        with pretended_h200():
            args.resolve_once()
            args.check_server_args()  # as the server does next, before it starts a process
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.name}"
        found["stopped"] = f"{type(error).__name__} in {where}: {' '.join(str(error).split())[:300]}"
    return found


def pretended_h200() -> contextlib.AbstractContextManager[Any]:
    """Answers the one question about a device that decides which attention backends go with a model: sm_90."""
    from unittest import mock

    return mock.patch("torch.cuda.get_device_capability", return_value=(9, 0))


def hisparse_settings(text: str) -> dict[str, Any]:
    """What SGLang makes of --hisparse-config, checked as it does."""
    from unittest import mock

    from sglang.srt.mem_cache.sparsity import factory

    with mock.patch.object(factory, "get_memory", return_value=mock.Mock(hisparse_config=text)):
        made = factory.parse_hisparse_config()
    return {name: getattr(made, name) for name in ("top_k", "device_buffer_size", "host_to_device_ratio")}


if __name__ == "__main__":
    for argv in json.load(sys.stdin):
        with contextlib.redirect_stdout(sys.stderr):
            seen = look(argv)
            if seen.get("hisparse_config"):
                seen["hisparse"] = hisparse_settings(seen["hisparse_config"])
        print(json.dumps(seen))
