"""One decode step of the model over its KV side: as it comes, or in CUDA graphs (HiSparse, section 3.4).

A graph is captured for each size of batch and context: batches are filled up to a power of two, contexts counted as the
next power of two. A step of a new size runs eagerly, the second is captured, from then on it is replayed; all three
compute the same, at the same sizes, so that they agree bit by bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from harness.engine.batch import DecodeBatch
from harness.engine.device import compute_stream, upload
from harness.engine.kv.base import KVSide
from harness.engine.models.base import Model
from harness.engine.selectors.base import Selector
from harness.schema import Config, Device, Family

SHORTEST = 256  # contexts up to here share a graph


class Decoder(ABC):
    """Owns nothing but how a step is run; model, KV side and selector are the executor's."""

    def __init__(self, model: Model, kv: KVSide, selector: Selector):
        self._model, self._kv, self._selector = model, kv, selector

    @abstractmethod
    def __call__(self, tokens: list[int], rows: list[int], seq_lens: list[int]) -> Tensor:
        """Compute each row's newest token (seq_lens count it); logits [n, vocab], valid until the next step."""

    def _step(self, tokens: Tensor, batch: DecodeBatch) -> Tensor:
        self._kv.begin_decode(batch.in_records(self._kv.footprint.tokens_per_record))
        logits = self._model.decode(tokens, batch, self._kv, self._selector)
        self._kv.finish_decode()
        return logits


class EagerDecoder(Decoder):
    """Batches as they are."""

    def __call__(self, tokens: list[int], rows: list[int], seq_lens: list[int]) -> Tensor:
        device = self._kv.device
        return self._step(upload(tokens, device), DecodeBatch.of(rows, seq_lens, device))


class GraphDecoder(Decoder):
    """Batches of a few sizes. capture=False: run them eagerly, which gives the same bits."""

    def __init__(self, model: Model, kv: KVSide, selector: Selector, context_len: int, *, capture: bool = True):
        super().__init__(model, kv, selector)
        self._context_len, self._capture = context_len, capture
        self._sizes: dict[tuple[int, int], Size] = {}
        self._memory: Any = None  # the graphs' pool; one runs at a time, so all share it

    @property
    def num_graphs(self) -> int:
        return sum(size.graph is not None for size in self._sizes.values())

    def __call__(self, tokens: list[int], rows: list[int], seq_lens: list[int]) -> Tensor:
        members, longest = next_power(len(rows)), min(self._context_len, next_power(max(seq_lens), SHORTEST))
        key = members, longest
        if key not in self._sizes:
            self._sizes[key] = Size(members, longest, self._kv.device)
        size = self._sizes[key]
        filled = members - len(rows)
        inputs = [*tokens, *[0] * filled], [*rows, *[self._kv.num_rows] * filled], [*seq_lens, *[1] * filled]
        size.inputs.copy_(upload(list(inputs), self._kv.device))
        if size.graph is not None:
            size.graph.replay()
        elif self._capture and size.has_run:
            self._captured(size).replay()
        else:
            size.logits = self._run(size)
            size.has_run = True  # what a first run sets up (libraries, their workspaces) is no part of a graph
        assert size.logits is not None
        return size.logits[: len(rows)]

    def _run(self, size: Size) -> Tensor:
        tokens, rows, seq_lens = size.inputs
        batch = DecodeBatch.padded(rows, seq_lens.to(torch.int32), size.max_len, self._kv.num_rows)
        return self._step(tokens, batch)

    def _captured(self, size: Size) -> torch.cuda.CUDAGraph:
        if self._memory is None:
            self._memory = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, stream=compute_stream()):
            size.logits = self._run(size)
        size.graph = graph
        return graph


class Size:
    """The static inputs and output of one size of step."""

    def __init__(self, members: int, max_len: int, device: torch.device):
        self.max_len = max_len
        self.inputs = torch.empty(3, members, dtype=torch.int64, device=device)  # tokens, rows, sequence lengths
        self.logits: Tensor | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.has_run = False


def next_power(number: int, least: int = 1) -> int:
    """The smallest power of two times `least` that is not below the number."""
    while least < number:
        least *= 2
    return least


def why_eager(config: Config) -> str | None:
    """Why decode steps of a completed config are not captured into CUDA graphs; None where they are."""
    if config.platform.device is Device.cpu:
        return "computed on the CPU"
    return _why_never(config) or (None if config.platform.cuda_graphs else "platform.cuda_graphs=false")


def _why_never(config: Config) -> str | None:
    """What the host has to know in the middle of a step, so that no graph can hold it."""
    if config.model.family is Family.csa:
        return "compressed entries complete at steps of their own"
    if any(map(config.model.has_experts, range(config.model.num_layers))):
        return "the host sorts tokens by their experts"
    if config.trace.record:
        return "selections are recorded"
    return None


def decode_label(config: Config) -> str:
    """How decode steps run, for `/server_info`."""
    reason = why_eager(config)
    return "CUDA graphs" if reason is None else f"eager: {reason}"


def make_decoder(config: Config, model: Model, kv: KVSide, selector: Selector) -> Decoder:
    if config.platform.device is Device.cpu or _why_never(config):
        return EagerDecoder(model, kv, selector)
    return GraphDecoder(model, kv, selector, config.context_len, capture=config.platform.cuda_graphs)
