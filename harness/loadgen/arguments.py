"""The command line of `python -m harness.loadgen`: the flags people know from SGLang's and vLLM's bench_serving.

Where those two disagree on a default (lengths, number of prompts) there is none here, and it must be said.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.schema import LoadConfig

DATASETS = ("random", "text", "sharegpt", "longbench-v2", "mooncake", "azure")
ALSO = {"random-ids": "random", "longbench_v2": "longbench-v2"}  # other clients' names
ENDPOINTS = {  # what may be said -> the client's name
    "completions": "completions",
    "chat": "chat",
    "generate": "generate",
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/generate": "generate",
}
BACKENDS = {
    "sglang": "generate",
    "sglang-native": "generate",
    "sglang-oai": "completions",
    "sglang-oai-chat": "chat",
    "vllm": "completions",
    "vllm-chat": "chat",
    "openai": "completions",
    "openai-chat": "chat",
}
LIMITS = {  # fields of LoadConfig that `--limit NAME=VALUE` may set
    f.name: f.type
    for f in fields(LoadConfig)
    if f.name.startswith(("max_lag", "max_cpu", "max_failed", "max_token", "min_completed", "late_after"))
    or f.name.endswith("_timeout_s")
}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, each in its bounds. Leaves through argparse's own error (status 2) where they are not."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.loadgen",
        usage="%(prog)s --base-url URL --num-prompts N [flags; --help lists them]",
        description="Drive any OpenAI-compatible server, or SGLang's /generate, and print what it did.",
        epilog="OPENAI_API_KEY, where it is set, is sent as the bearer token.",
    )
    _server(parser.add_argument_group("server"))
    _requests(parser.add_argument_group("requests"))
    _pace(parser.add_argument_group("pacing"))
    _outcome(parser.add_argument_group("measures and results"))
    args = parser.parse_args(argv)
    args.endpoint = ENDPOINTS[args.endpoint] if args.endpoint else BACKENDS[args.backend or "openai"]
    problem = next(_problems(args), None)
    if problem:
        parser.error(problem)
    return args


def _server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--base-url", help="http://host:port")
    group.add_argument("--host", default="127.0.0.1", help="with --port, instead of --base-url")
    group.add_argument("--port", type=int)
    group.add_argument("--model", help="the name the server knows it by (default: the first of /v1/models)")
    group.add_argument("--endpoint", choices=list(ENDPOINTS), help="default: completions")
    group.add_argument("--backend", choices=list(BACKENDS), help="the endpoint by bench_serving's name for it")
    group.add_argument("--tokenizer", type=Path, help="tokenizer.json, or a folder with one; needed only for real text")
    group.add_argument("--vocab-size", type=_at_least(1), help="random ids are below this (default: 10000)")
    group.add_argument("--extra-request-body", type=_json_object, default={}, metavar="JSON")
    group.add_argument("--temperature", type=_number(0), default=0.0)
    group.add_argument("--disable-ignore-eos", action="store_true", help="let the model stop; lengths then vary")


def _requests(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dataset-name", choices=DATASETS, default="random", type=lambda name: ALSO.get(name, name))
    group.add_argument("--dataset-path", help="its file; for text a glob (default: the Python library's sources)")
    group.add_argument("--num-prompts", type=_at_least(1), required=True)
    group.add_argument("--random-input-len", type=_at_least(1), help="random and text: prompt tokens")
    group.add_argument("--random-output-len", type=_at_least(1), help="random, text, longbench-v2: tokens to generate")
    group.add_argument(
        "--random-range-ratio",
        type=_number(0, 1),
        default=1.0,
        help="lengths are uniform from this share of the length to the length, as in SGLang (default: 1, all equal)",
    )
    group.add_argument("--sharegpt-output-len", type=_at_least(1), help="tokens to generate, where not the answer's")
    group.add_argument("--max-input-len", type=_at_least(1), default=131072, help="longer requests are left out")
    group.add_argument("--max-output-len", type=_at_least(1), default=32768)
    group.add_argument("--length-scale", type=_number(0, above=True), default=1.0, help="traces: lengths x this")
    group.add_argument(
        "--seed", type=_at_least(0), default=0, help="another seed, other prompts: none hits a warm cache"
    )
    group.add_argument("--warmup-requests", "--num-warmups", type=_at_least(0), default=1)


def _pace(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-concurrency", type=_at_least(1), help="workers of the closed loop, or most in flight")
    group.add_argument(
        "--request-rate",
        type=_number(0, above=True),
        default=math.inf,
        help="open loop: arrivals per second; inf (default): closed loop, or all at once without --max-concurrency",
    )
    group.add_argument("--burstiness", type=_number(0, above=True), default=1.0, help="gamma arrivals; 1 is Poisson")
    group.add_argument("--constant-rate", action="store_true", help="equal gaps in place of Poisson's")
    group.add_argument("--use-trace-timestamps", action="store_true", help="mooncake, azure: replay their times")
    group.add_argument("--slowdown", "--mooncake-slowdown-factor", type=_number(0, above=True), default=1.0)
    group.add_argument("--stagger-s", type=_number(0), default=0.0, help="closed loop: between the workers' starts")
    group.add_argument("--max-seconds", type=_number(0, above=True), help="no request is due later than this")
    group.add_argument("--processes", type=_at_least(1), default=1, help="load-generator processes on this machine")


def _outcome(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--output-file", type=Path, help="one JSON object is appended to it as a line")
    group.add_argument("--output-details", action="store_true", help="with every request's lengths, times and text")
    group.add_argument("--goodput", nargs="+", type=_slo, default=[], metavar="ttft:MS", help="also tpot:MS e2el:MS")
    group.add_argument("--num-devices", type=_at_least(1), default=1, help="for tokens/s per device")
    group.add_argument("--tag", help="kept in the result line")
    group.add_argument(
        "--limit",
        action="append",
        type=_limit,
        default=[],
        metavar="NAME=VALUE",
        help=f"time limits, and what makes a run invalid: {', '.join(LIMITS)}",
    )


def _problems(args: argparse.Namespace) -> Any:
    """What does not go together, in words."""
    if (args.base_url is None) == (args.port is None):
        yield "give --base-url URL, or --port (and --host)"
    is_open, trace = math.isfinite(args.request_rate), args.dataset_name in ("mooncake", "azure")
    if args.use_trace_timestamps and (is_open or not trace):
        yield "--use-trace-timestamps needs --dataset-name mooncake or azure, and no --request-rate"
    if args.dataset_name in ("random", "text") and not (args.random_input_len and args.random_output_len):
        yield f"--dataset-name {args.dataset_name} needs --random-input-len and --random-output-len"
    if args.dataset_name == "longbench-v2" and not args.random_output_len:
        yield "--dataset-name longbench-v2 needs --random-output-len"
    if args.dataset_name not in ("random", "text") and not args.dataset_path:
        yield f"--dataset-name {args.dataset_name} needs --dataset-path FILE"
    if args.dataset_name in ("text", "longbench-v2") and not args.tokenizer:
        yield f"--dataset-name {args.dataset_name} needs --tokenizer"
    if args.dataset_name == "sharegpt" and not (args.tokenizer or args.sharegpt_output_len):
        yield "--dataset-name sharegpt needs --tokenizer, or --sharegpt-output-len to send text as it is"
    if args.endpoint == "chat" and not args.tokenizer and args.dataset_name != "sharegpt":
        yield f"chat takes text: --dataset-name {args.dataset_name} needs --tokenizer to make text of its ids"
    if (args.burstiness != 1 or args.constant_rate) and not is_open:
        yield "--burstiness and --constant-rate need --request-rate"
    if args.burstiness != 1 and args.constant_rate:
        yield "--constant-rate leaves no burstiness"
    if args.slowdown != 1 and not args.use_trace_timestamps:
        yield "--slowdown needs --use-trace-timestamps"
    if args.stagger_s and (is_open or args.use_trace_timestamps):
        yield "--stagger-s is for the closed loop, without --request-rate"


def _at_least(least: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} must be at least {least}")
        return value

    return whole_number


def _number(least: float, most: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if math.isnan(value) or not least <= value <= most or (above and value == least):
            bounds = f"above {least:g}" if above else f"at least {least:g}"
            raise argparse.ArgumentTypeError(
                f"{text} must be {bounds}" + (f", at most {most:g}" if most < math.inf else "")
            )
        return value

    return number


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text} must be a JSON object, such as {{"top_p": 0.9}}')
    return value


def _slo(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    if name not in ("ttft", "tpot", "e2el"):
        raise argparse.ArgumentTypeError(f"{text} must be ttft:MS, tpot:MS or e2el:MS")
    return f"slo_{name}_ms", _number(0, above=True)(value)


def _limit(text: str) -> tuple[str, float | int]:
    name, _, value = text.partition("=")
    if name not in LIMITS:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(LIMITS)}")
    return name, _at_least(0)(value) if LIMITS[name] == "int" else _number(0)(value)
