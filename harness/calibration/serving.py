"""What the native server adds to its engine: the same steps in process and over HTTP, one after the other.

Short prompts of one cell, so that steps are short too: per step and token what streaming adds to a decode step (the
server's event loop takes turns with the engine for Python's lock, and the client for the machine's cores), per request
and prompt token what lies between sending a request and its first token beside its prefill.
"""

from __future__ import annotations

import copy
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.calibration.engine_steps import Stepper, roomy
from harness.calibration.terms import Fit, fit
from harness.instances.native import NativeInstance
from harness.loadgen.loop import run_on_own_loop
from harness.loadgen.point import PointLoad
from harness.loadgen.run import drive
from harness.records import RequestRecord
from harness.schema import Config
from workloads.prompt import make_prompt

_BATCHES = (1, 4, 16)
_STREAMED = 64  # tokens of each request
_IN_PROCESS = 6 * _STREAMED  # enough for the steps of all batches, one after the other
_ROUNDS = 3
_PROMPT = 32
_SINGLES = 6  # requests alone, of each length


@dataclass(frozen=True, slots=True)
class Serving:
    """Seconds; residuals are those of the fits."""

    step_s: float
    token_s: float
    request_s: float
    prompt_token_s: float
    entry_s: float


def time_serving(config: Config) -> Serving:
    """Of one cell over a memory-copy link. Raises InstanceError where the server does not start."""
    config = copy.deepcopy(config)
    config.engine.context_len = max(config.context_len, _PROMPT + _IN_PROCESS)
    config = roomy(config, max(_BATCHES))
    lengths = (_PROMPT, min(config.workload.input_len, config.context_len - _STREAMED))
    instance = NativeInstance(config)
    try:
        url = instance.start()
        client = _Client(url, config)
        client.run(_PROMPT, 1, 2, 1)  # opens what is opened once
        gaps: dict[int, list[float]] = {size: [] for size in _BATCHES}
        for _ in range(_ROUNDS):
            inner = _in_process(config)
            for size in _BATCHES:
                gaps[size].append(_step_s(client.run(_PROMPT, size, _STREAMED, size)) - inner[size])
        firsts = {length: _first_token(client, config, length) for length in lengths}
        entry_s = _entry_s(client, max(lengths))
    finally:
        instance.stop()
    stream = _line([(size, statistics.median(found)) for size, found in gaps.items()])
    entry = _line(list(firsts.items()))
    return Serving(stream.values[0], stream.values[1], entry.values[0], entry.values[1], entry_s)


class _Client:
    def __init__(self, url: str, config: Config):
        self._url, self._config, self._rng = url, config, random.Random(0)

    def run(self, prompt_len: int, count: int, output_len: int, concurrency: int) -> list[RequestRecord]:
        vocab = self._config.model.vocab_size
        prompts = [
            make_prompt([self._rng.randrange(vocab) for _ in range(prompt_len)], output_len) for _ in range(count)
        ]
        load = replace(self._config.load, stagger_s=0.0, max_seconds=None)
        point = PointLoad(
            base_url=self._url, model=self._config.model.name, prompts=prompts, concurrency=concurrency, load=load
        )
        requests = run_on_own_loop(drive(point)).requests
        failed = next((request for request in requests if request.error), None)
        if failed:
            raise RuntimeError(f"a request failed: {failed.error} {failed.error_detail}")
        return requests


def _in_process(config: Config) -> dict[int, float]:
    """Seconds of a decode step of each batch, at the contexts that the served ones have on the mean."""
    stepper = Stepper(config)
    stepper.fill(max(_BATCHES), _PROMPT, _IN_PROCESS)
    return {size: stepper.decode(size, _STREAMED // 2).seconds for size in sorted(_BATCHES, reverse=True)}


def _step_s(requests: Sequence[RequestRecord]) -> float:
    """Mean seconds between tokens while all requests decode."""
    begin, end = (max(r.chunk_times_s[0] for r in requests), min(r.chunk_times_s[-1] for r in requests))
    times = [[at for at in request.chunk_times_s if begin <= at <= end] for request in requests]
    return statistics.mean((mine[-1] - mine[0]) / (len(mine) - 1) for mine in times if len(mine) > 1)


def _first_token(client: _Client, config: Config, prompt_len: int) -> float:
    """Median seconds of a lone request's TTFT beyond its prefill in process, both taken in turn."""
    beyond = []
    stepper = Stepper(config)
    stepper.alone(prompt_len)
    for _ in range(_SINGLES):
        (request,) = client.run(prompt_len, 1, 1, 1)
        beyond.append(request.chunk_times_s[0] - request.scheduled_s - stepper.alone(prompt_len))
    return statistics.median(beyond)


def _entry_s(client: _Client, prompt_len: int) -> float:
    """By how much each of a burst of requests delays the first one's first token, beside a lone request's."""
    crowd, late = max(_BATCHES), []
    for _ in range(_ROUNDS):
        alone, *_ = _ttfts(client.run(prompt_len, 1, 1, 1))
        late.append((min(_ttfts(client.run(prompt_len, crowd, 1, crowd))) - alone) / (crowd - 1))
    return max(0.0, statistics.median(late))


def _ttfts(requests: Sequence[RequestRecord]) -> list[float]:
    return [request.chunk_times_s[0] - request.scheduled_s for request in requests]


def _line(points: Sequence[tuple[int, float]]) -> Fit:
    """Intercept and slope, neither negative, of seconds over a count."""
    floor = 1e-6  # a difference of two timings may come out at or below zero
    return fit([(1.0, float(x)) for x, _ in points], [max(floor, y) for _, y in points])
