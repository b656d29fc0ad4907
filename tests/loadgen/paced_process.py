"""What a paced server in a process of its own did, and a point driven against one of its scenarios."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from harness.loadgen.bodies import request_body
from harness.loadgen.client import Client
from harness.loadgen.exchange import Exchange, digest
from harness.loadgen.pacing import closed_loop
from harness.records import RequestRecord
from harness.schema import LoadConfig
from workloads.prompt import Prompt, make_prompt, text_prompt

T = TypeVar("T")


def truths(base_url: str) -> dict[str, dict]:
    """What the server did under this URL since the last time, by the key of the prompt."""
    with urllib.request.urlopen(base_url + "/truth") as response:
        return {truth["key"]: truth for truth in json.load(response)}


def prompts(count: int, output_len: int, endpoint: str, first: int = 0) -> list[Prompt]:
    if endpoint == "chat":
        return [text_prompt(f"p{number} tell me", output_len) for number in range(first, first + count)]
    return [make_prompt([number] * 4, output_len) for number in range(first, first + count)]


def limits(**overrides: float) -> LoadConfig:
    return LoadConfig(**({"concurrencies": [1], "num_requests": 1} | overrides))


async def drive(
    base_url: str, asked: list[Prompt], *, endpoint: str, concurrency: int, load: LoadConfig, **client_options
) -> tuple[dict[str, RequestRecord], int, float]:
    """Records by key (times from the same zero as the returned start), how many were held back, the start."""
    records: dict[str, RequestRecord] = {}
    held = 0
    async with Client(base_url, load, endpoint=endpoint, **client_options) as client:
        bodies = [request_body(p, model="paced", temperature=0.0, ignore_eos=True, endpoint=endpoint) for p in asked]
        await client.connect(concurrency)
        start_s = time.perf_counter()
        exchanges = []

        async def send(turn) -> float:
            exchange = Exchange(
                request_id=str(turn.number), worker=turn.worker, prompt=asked[turn.number], scheduled_s=turn.scheduled_s
            )
            await client.send(bodies[turn.number], exchange)
            exchanges.append(exchange)
            return time.perf_counter()

        await closed_loop(send, start_s=start_s, count=len(asked), concurrency=concurrency)
        for exchange in exchanges:
            record, held_back = await digest(exchange, exact=True, start_s=start_s)
            held += held_back
            prompt = exchange.prompt
            records[prompt.text[:40] if prompt.text else str(prompt.token_ids[0])] = record
    return records, held, start_s


def undisturbed(check: Callable[[], T], tries: int = 5) -> T:
    """What a check of times gives, once it holds: a machine busy with something else may blur them in one try, what the
    client gets wrong it gets wrong in all."""
    for _ in range(tries - 1):
        with suppress(AssertionError):
            return check()
    return check()


def run(*args, **kwargs):
    return asyncio.run(drive(*args, **kwargs))
