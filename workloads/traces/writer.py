"""Writing a trace: selections are given stream by stream or step by step, and lie on disk a chunk at a time."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from workloads.traces.coding import encode
from workloads.traces.layout import CHUNK_STEPS, END, END_MAGIC, INDEX, MAGIC, START, VERSION, TraceError, TraceHeader

Int32 = NDArray[np.int32]
_Key = tuple[int, int]


class TraceWriter:
    """A trace that appears under its name when it is whole: `close`, or the end of a `with` without an error.

    At most CHUNK_STEPS steps of each stream that is still being written are held in memory.
    """

    def __init__(self, path: Path | str, header: TraceHeader) -> None:
        self._path = Path(path)
        self._partial = self._path.with_name(f".{self._path.name}.partial")
        self._header = header
        try:
            self._file = self._partial.open("wb")
        except OSError as error:
            raise TraceError(f"{self._path}: cannot be written ({error.strerror})") from error
        self._file.write(START.pack(MAGIC, VERSION, 0))
        self._index: list[tuple[int, ...]] = []
        self._pending: dict[_Key, list[tuple[Int32, int]]] = {}
        self._steps: dict[_Key, int] = {}

    def append(self, request: int, layer: int, selections: Int32, context_lens: Int32) -> None:
        """The next steps of a stream: selections [steps, width] with -1 where shorter, context lengths [steps].

        The context length counts the newest position. Raises ValueError for a position outside it and for more
        than k of them.
        """
        selections, context_lens = np.asarray(selections, np.int32), np.asarray(context_lens, np.int32)
        self._check(request, layer, selections, context_lens)
        pending = self._pending.setdefault((request, layer), [])
        for start in range(0, len(selections)):
            pending.append((selections[start], int(context_lens[start])))
            if len(pending) == CHUNK_STEPS:
                self._write_chunk((request, layer))

    def end_stream(self, request: int, layer: int) -> None:
        """No more steps of this stream will come: what is held of it is written."""
        self._write_chunk((request, layer))
        self._pending.pop((request, layer), None)

    def close(self) -> None:
        """Write what is left and put the file in place. Raises ValueError where nothing was appended."""
        for key in self._pending:
            self._write_chunk(key)
        if not self._index:
            raise ValueError(f"{self._path}: no selections were written, so there is no trace")
        index = np.array(self._index, dtype=INDEX)
        header = replace(
            self._header,
            num_layers=len(np.unique(index["layer"])),
            num_requests=len(np.unique(index["request"])),
        ).to_json()
        tail = struct.pack("<I", len(header)) + header + index.tobytes()
        offset = self._file.tell()
        self._file.write(tail)
        self._file.write(END.pack(offset, offset + len(tail) + END.size, zlib.crc32(tail), 0, END_MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._path)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        end: Callable[[], None] = self.discard if kind else self.close
        try:
            end()
        except BaseException:
            self.discard()
            raise

    def _check(self, request: int, layer: int, selections: Int32, context_lens: Int32) -> None:
        where = f"request {request}, layer {layer}"
        if selections.ndim != 2 or context_lens.shape != (len(selections),):
            raise ValueError(
                f"{where}: selections {selections.shape} and context_lens {context_lens.shape} must be "
                "[steps, width] and [steps]"
            )
        outside = (selections < -1) | (selections >= context_lens[:, None])
        if outside.any():
            step, column = np.argwhere(outside)[0]
            before = self._steps.get((request, layer), 0) + len(self._pending.get((request, layer), ()))
            raise ValueError(
                f"{where}, step {before + step}: position {selections[step, column]} "
                f"is outside a context of {context_lens[step]}"
            )
        widest = int((selections >= 0).sum(axis=1).max(initial=0))
        if widest > self._header.top_k:
            raise ValueError(f"{where}: a selection of {widest} positions is longer than top_k={self._header.top_k}")

    def _write_chunk(self, key: _Key) -> None:
        pending = self._pending.get(key, [])
        if not pending:
            return
        width = max(len(selection) for selection, _ in pending)
        selections = np.full((len(pending), width), -1, dtype=np.int32)
        for step, (selection, _) in enumerate(pending):
            selections[step, : len(selection)] = selection
        data, selected = encode(selections, np.array([n for _, n in pending], np.int32), ordered=self._header.ordered)
        first = self._steps.get(key, 0)
        entry = (*key, first, len(pending), self._file.tell(), selected, len(data), zlib.crc32(data))
        self._index.append(entry)
        self._file.write(data)
        self._steps[key] = first + len(pending)
        pending.clear()
