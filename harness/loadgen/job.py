"""From the command line's flags to the load of one point: its prompts, its pace, its limits."""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import urllib.error
import urllib.request
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.loadgen.point import PointLoad
from harness.loadgen.reading import one_line
from harness.loadgen.schedule import due_times
from harness.loadgen.target import models_url, parse_target
from harness.schema import ArrivalKind, LengthKind, LoadConfig, LoadMode, WorkloadConfig, WorkloadKind
from workloads import Prompt, Source, make_source, point_rng

if TYPE_CHECKING:
    from workloads.encoder import Encoder

VOCAB_SIZE = 10_000  # below that of any model that is served; random ids need no tokenizer then
_ASK_TIMEOUT_S = 10.0
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as the load itself: straight to the server


def point_load(args: argparse.Namespace) -> PointLoad:
    """Everything `harness.loadgen.run` needs. Raises ValueError for files and servers that are not there."""
    base_url = args.base_url if args.base_url is not None else f"http://{args.host}:{args.port}"
    parse_target(base_url, args.endpoint)  # before files are read for it
    base_url = base_url.rstrip("/")
    api_key = os.environ.get("OPENAI_API_KEY") or None
    encoder = _encoder(args.tokenizer)
    source = _source(args, encoder)
    load = load_config(args)
    where: dict[str, Any] = {"concurrency": load.concurrencies[0], "repeat": _point_number(load)}
    prompts = [_worded(p, args, encoder) for p in source.prompts(args.num_prompts, phase="measured", **where)]
    warmup = source.prompts(args.warmup_requests, phase="warmup", **where) if args.warmup_requests else []
    due_s = _due(load, prompts, where, args.seed)
    prompts = prompts if due_s is None else prompts[: len(due_s)]
    return PointLoad(
        base_url=base_url,
        model=args.model or _first_model(base_url, api_key),
        prompts=prompts,
        warmup=[_worded(prompt, args, encoder) for prompt in warmup],
        due_s=due_s,
        concurrency=args.max_concurrency or len(prompts),
        load=load,
        endpoint=args.endpoint,
        temperature=args.temperature,
        ignore_eos=not args.disable_ignore_eos,
        extra_body=args.extra_request_body,
        api_key=api_key,
        devices=args.num_devices,
    )


def load_config(args: argparse.Namespace) -> LoadConfig:
    """The pace and the limits."""
    concurrency = args.max_concurrency or args.num_prompts
    settings: dict[str, Any] = {
        "concurrencies": [concurrency],
        "num_requests": args.num_prompts,
        "warmup_requests": args.warmup_requests,
        "max_seconds": args.max_seconds,
        "processes": args.processes,
    }
    if args.use_trace_timestamps:
        settings |= {"mode": LoadMode.open, "arrivals": ArrivalKind.trace, "slowdown": args.slowdown}
    elif math.isfinite(args.request_rate):
        gamma = ArrivalKind.poisson if args.burstiness == 1 else ArrivalKind.gamma
        settings |= {
            "mode": LoadMode.open,
            "arrivals": ArrivalKind.constant if args.constant_rate else gamma,
            "request_rate": args.request_rate,
            "burstiness": args.burstiness,
        }
    else:
        settings["stagger_s"] = args.stagger_s
    return LoadConfig(**settings | dict(args.goodput) | dict(args.limit))


def _point_number(load: LoadConfig) -> int:
    """A number of the pace: two rates with one seed must not send the same prompts, which a server may have cached."""
    pace = (load.mode.value, load.arrivals and load.arrivals.value, load.request_rate, load.burstiness, load.slowdown)
    return zlib.crc32(repr(pace).encode())


def _due(load: LoadConfig, prompts: list[Prompt], where: dict[str, Any], seed: int) -> list[float] | None:
    if load.mode is LoadMode.closed:
        return None
    arrivals = [prompt.arrival_s for prompt in prompts if prompt.arrival_s is not None]
    return due_times(load, len(prompts), point_rng("arrivals", seed, *where.values()), arrivals or None)


def _source(args: argparse.Namespace, encoder: Encoder | None) -> Source:
    kinds = {"random": WorkloadKind.random_ids, "text": WorkloadKind.text_files}
    kind = kinds.get(args.dataset_name) or WorkloadKind(args.dataset_name.replace("-", "_"))
    workload = WorkloadConfig(
        kind=kind,
        name=args.dataset_name,
        seed=args.seed,
        files=[args.dataset_path] if args.dataset_path else [],
        **_lengths(args, kind),
    )
    if kind is WorkloadKind.sharegpt and encoder is None:
        from workloads.conversations import Conversations

        return Conversations(workload, encoder=None)
    vocab_size = args.vocab_size or (encoder.vocab_size if encoder else VOCAB_SIZE)
    return make_source(workload, vocab_size=vocab_size, tokenizer_file=_tokenizer_file(args.tokenizer))


def _lengths(args: argparse.Namespace, kind: WorkloadKind) -> dict[str, Any]:
    """The length fields of WorkloadConfig."""
    if not kind.reads_files:
        most, ratio = (args.random_input_len, args.random_output_len), args.random_range_ratio
        if ratio == 1:
            return {"input_len": most[0], "output_len": most[1]}
        spread = (1 - ratio) / (1 + ratio)  # so that mean x (1 - spread) = ratio x most, and mean x (1 + spread) = most
        means = [length * (1 + ratio) / 2 for length in most]
        return {
            "lengths": LengthKind.uniform,
            "input_len": max(1, round(means[0])),
            "output_len": max(1, round(means[1])),
            "input_spread": min(spread, 0.999),
            "output_spread": min(spread, 0.999),
        }
    output_len = args.sharegpt_output_len or args.random_output_len or args.max_output_len
    return {
        "input_len": args.max_input_len,
        "output_len": output_len,
        "max_input_len": args.max_input_len,
        "max_output_len": None if kind is WorkloadKind.longbench_v2 else args.max_output_len,
        "length_scale": args.length_scale if kind.is_trace else 1.0,
    }


def _worded(prompt: Prompt, args: argparse.Namespace, encoder: Encoder | None) -> Prompt:
    """The prompt as its endpoint takes it: chat takes text, whose tokens the server counts with its template."""
    if args.dataset_name == "sharegpt" and args.sharegpt_output_len:
        prompt = replace(prompt, output_len=args.sharegpt_output_len)
    if args.endpoint != "chat":
        return prompt
    text = prompt.text
    if text is None:
        assert encoder is not None, "the arguments are refused without a tokenizer"
        text = encoder.decode(prompt.token_ids)
    return replace(prompt, text=text, input_len=None)


def _encoder(tokenizer: Path | None) -> Encoder | None:
    file = _tokenizer_file(tokenizer)
    if file is None:
        return None
    from workloads.encoder import Encoder  # loads the tokenizers library

    return Encoder(file, vocab_size=None)


def _tokenizer_file(tokenizer: Path | None) -> Path | None:
    return tokenizer / "tokenizer.json" if tokenizer and tokenizer.is_dir() else tokenizer


def _first_model(base_url: str, api_key: str | None) -> str:
    """The first model of the server's list."""
    url = models_url(base_url)
    request = urllib.request.Request(url)
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with _HTTP.open(request, timeout=_ASK_TIMEOUT_S) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        why = one_line(getattr(error, "reason", None) or repr(error), 80)
        raise ValueError(f"{url}: {why}; is the server up? --model NAME asks it nothing") from error
