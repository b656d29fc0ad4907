"""Recording selections (`trace.record`): another selector, whose every decode selection is also kept.

While requests run, what is selected goes to a temporary file as it is; nothing is coded or sorted then, so that
what is recorded is not slowed by it. `take` hands the file over, and `trace_bytes` makes a trace of it.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.selectors.base import Selector
from harness.engine.selectors.wrapper import Wrapper
from harness.identity import defining
from harness.schema import Config
from workloads.traces import TraceHeader, TraceWriter


class Spool:
    """Selections as they came: int32 [n, width] one after another, and in memory whose they are."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open until `close`
        self._steps: list[tuple[list[int], NDArray[np.int32]]] = []  # requests and context lengths of a batch
        self._parts: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # layer -> (step, offset, width)
        self._end = 0

    def begin_step(self, requests: list[int], context_lens: NDArray[np.int32]) -> None:
        self._steps.append((requests, context_lens))

    def add(self, layer: int, selection: NDArray[np.int32]) -> None:
        """The selection [n, width] of one layer in the step begun last."""
        written = self._file.write(selection.data)
        if written != selection.nbytes:
            raise OSError(f"recording selections: only {written} of {selection.nbytes} bytes fit the temporary folder")
        self._parts[layer].append((len(self._steps) - 1, self._end, selection.shape[1]))
        self._end += selection.nbytes

    def trace_bytes(self, header: TraceHeader) -> bytes:
        """All of it as the bytes of a trace file, nothing where nothing was selected. The spool is closed."""
        try:
            if not self._parts:
                return b""
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "selections.trace")
                self._write_trace(path, header)
                return path.read_bytes()
        finally:
            self.close()

    def _write_trace(self, path: Path, header: TraceHeader) -> None:
        raw = np.memmap(self._file, dtype=np.int32, mode="r", shape=(self._end // 4,))
        with TraceWriter(path, header) as writer:
            for layer in sorted(self._parts):
                for request, (selections, lengths) in sorted(self._streams(layer, raw).items()):
                    width = max(map(len, selections))
                    steps = np.full((len(selections), width), -1, dtype=np.int32)
                    for row, selection in zip(steps, selections, strict=True):
                        row[: len(selection)] = selection
                    writer.append(request, layer, steps, np.array(lengths, dtype=np.int32))
                    writer.end_stream(request, layer)

    def close(self) -> None:
        self._file.close()

    def _streams(self, layer: int, raw: NDArray[np.int32]) -> dict[int, tuple[list[NDArray[np.int32]], list[int]]]:
        """Of one layer: request -> its selections and context lengths, step by step."""
        found: dict[int, tuple[list[NDArray[np.int32]], list[int]]] = {}
        for step, offset, width in self._parts[layer]:
            requests, context_lens = self._steps[step]
            batch = raw[offset // 4 : offset // 4 + len(requests) * width].reshape(-1, width)
            for request, context_len, selection in zip(requests, context_lens.tolist(), batch, strict=True):
                selections, lengths = found.setdefault(request, ([], []))
                selections.append(selection)
                lengths.append(context_len)
        return found


def trace_header(config: Config) -> TraceHeader:
    """The header of a trace recorded under a completed config."""
    return TraceHeader(
        model=config.model.name,
        selector=config.selector.kind.value,
        top_k=config.top_k,
        source="native",
        ordered=True,
        provenance={"recorded": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "config": defining(config)},
    )


class Recording(Wrapper):
    """Any other selector; a request gets its number in the order in which prefills begin."""

    def __init__(self, inner: Selector):
        super().__init__(inner)
        self._spool = Spool()
        self._requests: dict[int, int] = {}  # row -> number of the request that has it
        self._next_request = 0
        self._chunk: ChunkBatch | None = None
        self._batch: DecodeBatch | None = None

    def take(self) -> Spool:
        """What was recorded so far, for the caller to close; recording goes on from nothing."""
        taken, self._spool = self._spool, Spool()
        self._requests, self._next_request, self._batch = {}, 0, None
        return taken

    def extend(self, layer: int, batch: ChunkBatch, keys: Tensor) -> None:
        if batch.start == 0 and batch is not self._chunk:
            self._requests[batch.row] = self._next_request
            self._next_request += 1
        self._chunk = batch
        super().extend(layer, batch, keys)

    def select(self, layer: int, batch: DecodeBatch, query: tuple[Tensor, ...]) -> Tensor:
        selection = super().select(layer, batch, query)
        if batch is not self._batch:
            self._batch = batch
            self._spool.begin_step([self._requests[row] for row in batch.rows.tolist()], batch.seq_lens.cpu().numpy())
        self._spool.add(layer, np.ascontiguousarray(selection.cpu().numpy()))
        return selection
