"""Prompts of random ids with the lengths, the arrival times and the shared prefixes of a trace."""

from __future__ import annotations

import numpy as np

from harness.schema import WorkloadConfig
from workloads.jsonfile import data_file
from workloads.lengths import scaled
from workloads.prompt import Phase, Prompt, make_prompt, point_rng
from workloads.random_ids import id_range
from workloads.request_traces import BLOCK_TOKENS, TraceRequest, read_trace


class Replayed:
    """The first requests of a trace, in order. Those longer than the limits are left out.

    `length_scale` shrinks the blocks a Mooncake hash id stands for too, so that prefixes stay shared in proportion.
    Within a point, blocks of equal hash id have equal tokens; two points share nothing.
    """

    def __init__(self, workload: WorkloadConfig, *, vocab_size: int) -> None:
        self._workload = workload
        self._low, self._high = id_range(vocab_size)
        self._path = data_file(workload.files[0])
        self._all = read_trace(self._path, workload.kind)
        limit_in, limit_out = workload.longest
        self._block = scaled(BLOCK_TOKENS, workload.length_scale)
        self._requests = [r for r in self._all if self._input_len(r) <= limit_in and self._output_len(r) <= limit_out]

    def prompts(self, count: int, *, concurrency: int, repeat: int, phase: Phase) -> list[Prompt]:
        """See `workloads.source.Source.prompts`; two prompts are equal where the trace's hash ids say so."""
        if count > len(self._requests):
            left_out = len(self._all) - len(self._requests)
            limits = " and ".join(map(str, self._workload.longest))
            raise ValueError(
                f"{self._path}: holds {len(self._requests)} requests within {limits} "
                f"tokens ({left_out} are longer), not {count}: raise workload.max_input_len and max_output_len, "
                "lower workload.length_scale or send fewer requests"
            )
        key = (self._workload.kind.value, self._workload.seed, concurrency, repeat, phase)
        found = []
        for number, request in enumerate(self._requests[:count]):
            ids = self._ids(request, number, key)
            prompt = make_prompt(ids.tolist(), self._output_len(request))
            prompt.arrival_s = request.arrival_s - self._requests[0].arrival_s
            found.append(prompt)
        return found

    def _input_len(self, request: TraceRequest) -> int:
        if not request.hash_ids:
            return scaled(request.input_len, self._workload.length_scale)
        whole = len(request.hash_ids) - 1
        rest = request.input_len - whole * BLOCK_TOKENS
        return whole * self._block + max(1, round(rest * self._block / BLOCK_TOKENS))

    def _output_len(self, request: TraceRequest) -> int:
        return scaled(request.output_len, self._workload.length_scale)

    def _ids(self, request: TraceRequest, number: int, key: tuple[object, ...]) -> np.ndarray:
        """Int64 [input_len]."""
        length = self._input_len(request)
        if not request.hash_ids:
            return self._draw(length, *key, "request", number)
        blocks = [self._draw(self._block, *key, "block", hash_id) for hash_id in request.hash_ids]
        return np.concatenate(blocks)[:length]

    def _draw(self, length: int, *key: object) -> np.ndarray:
        return point_rng(*key).integers(self._low, self._high, size=length)
