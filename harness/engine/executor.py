"""The torch executor: runs a scheduler's plan on the model and reports tokens and seconds."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from harness.engine.batch import ChunkBatch
from harness.engine.decoder import make_decoder
from harness.engine.device import CPU, compute_device, compute_stream, upload
from harness.engine.kv import make_kv
from harness.engine.models.loader import load_model
from harness.engine.scheduler import Chunk, Plan
from harness.engine.selectors import make_selector
from harness.schema import Config


@dataclass(kw_only=True, slots=True)
class Generation:
    """A request's tokens and how to choose the next."""

    tokens: list[int]  # prompt, then what was generated
    prompt_len: int
    computed: int = 0  # of the tokens, those that have KV
    max_new_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    row: int | None = None
    generator: torch.Generator | None = None


@dataclass(slots=True)
class StepResult:
    """New token of every request that got one, and where the time went."""

    tokens: dict[int, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prefill_tokens: int = 0


class Executor:
    """Owns model, selector state and KV; knows requests by id from `add` to `remove`.

    On a GPU the host waits once a step: for its tokens, and what else the step counted.
    """

    def __init__(self, config: Config, folder: Path | None):
        self.device = compute_device(config)
        try:
            with self._on_stream():
                self.kv = make_kv(config, self.device)
                self.selector = make_selector(config, self.kv.state_rows, self.device)
                self.model = load_model(config, folder, self.device)
        except torch.OutOfMemoryError as error:
            raise ValueError("the GPU is too small for the model and engine.device_kv_budget: lower that") from error
        self._decoder = make_decoder(config, self.model, self.kv, self.selector)
        self._grows = config.engine.admission.grows
        self._requests: dict[int, Generation] = {}
        self.last_logits: Tensor | None = None
        """Of the last decode step, [n, vocab], until the next: exactness tests read it."""

    def add(self, request_id: int, request: Generation) -> None:
        if request.temperature > 0:
            request.generator = torch.Generator()
            request.generator.manual_seed(request_id if request.seed is None else request.seed)
        self._requests[request_id] = request

    def remove(self, request_id: int) -> None:
        """Forget a request at any stage and free its KV."""
        self.retract(request_id)
        del self._requests[request_id]

    def retract(self, request_id: int) -> None:
        """Free a request's KV at any stage; it keeps its tokens, and computes again from the first when it is admitted
        again."""
        request = self._requests[request_id]
        if request.row is not None:
            self.kv.release(request.row)
        request.row, request.computed = None, 0

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        """Retract, admit, prefill, then decode, as planned."""
        with self._on_stream():
            return self._run(plan)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.device == CPU else torch.cuda.stream(compute_stream())

    def _run(self, plan: Plan) -> StepResult:
        result = StepResult()
        for request_id in plan.retracted:
            self.retract(request_id)
        for request_id in plan.admitted:
            request = self._requests[request_id]
            room = len(request.tokens) if self._grows else request.prompt_len + request.max_new_tokens
            request.row = self.kv.admit(self.kv.footprint.num_records(room))
        begin = time.perf_counter()
        for chunk in plan.prefill:
            self._prefill(chunk, result)
        if plan.prefill and self.device != CPU:
            compute_stream().synchronize()  # so that its time is not counted as decode's
        middle = time.perf_counter()
        if plan.decode:
            self._decode(plan.decode, result)
        result.prefill_seconds = middle - begin
        result.decode_seconds = time.perf_counter() - middle
        return result

    def _prefill(self, chunk: Chunk, result: StepResult) -> None:
        request = self._requests[chunk.request_id]
        assert request.row is not None
        batch = ChunkBatch.of(request.row, chunk.start, chunk.length, self.device)
        self.kv.begin_chunk(batch.in_records(self.kv.footprint.tokens_per_record))
        tokens = upload(request.tokens[batch.start : batch.end], self.device)
        logits = self.model.prefill(tokens, batch, self.kv, self.selector)
        result.prefill_tokens += chunk.length
        request.computed = batch.end
        if chunk.is_last:
            self.kv.finish_prefill(request.row, self.kv.footprint.num_records(request.prompt_len))
            if len(request.tokens) == request.prompt_len:  # else it was retracted, and the token is known
                self._accept(chunk.request_id, self._sample(request, logits), result)

    def _decode(self, ids: tuple[int, ...], result: StepResult) -> None:
        requests = [self._requests[i] for i in ids]
        rows = [r.row for r in requests if r.row is not None]
        if self._grows:
            for row, request in zip(rows, requests, strict=True):
                self.kv.grow(row, self.kv.footprint.num_records(request.computed + 1))
        tokens = [r.tokens[r.computed] for r in requests]
        logits = self._decoder(tokens, rows, [r.computed + 1 for r in requests])
        self.last_logits = logits
        greedy = self._read(logits.argmax(dim=1))
        for i, request_id in enumerate(ids):
            request = requests[i]
            request.computed += 1
            if request.computed < len(request.tokens):
                continue  # a step repeated after a retraction: the next token is known
            token = greedy[i] if request.temperature == 0 else self._sample(request, logits[i])
            self._accept(request_id, token, result)

    def _read(self, tokens: Tensor) -> list[int]:
        """The tokens; with them, at no cost, what the KV side counted on the device."""
        if self.kv.totals is None:
            return tokens.tolist()
        values = torch.cat((tokens, self.kv.totals)).tolist()
        self.kv.set_totals(values[len(tokens) :])
        return values[: len(tokens)]

    def _sample(self, request: Generation, logits: Tensor) -> int:
        if request.temperature == 0:
            return int(logits.argmax())
        # in double and below zero, so that no temperature, however small, makes an inf or a NaN
        logits = logits.cpu().double()  # a request's generator is the host's, whatever computes
        probabilities = ((logits - logits.max()) / request.temperature).softmax(dim=0)
        return int(torch.multinomial(probabilities, 1, generator=request.generator))

    def _accept(self, request_id: int, token: int, result: StepResult) -> None:
        self._requests[request_id].tokens.append(token)
        result.tokens[request_id] = token
