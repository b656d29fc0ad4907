"""Reading a trace: memory-mapped, a chunk decoded when it is asked for, every byte checked before it is believed."""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.traces.coding import decode
from workloads.traces.layout import END, END_MAGIC, INDEX, MAGIC, START, VERSION, TraceError, TraceHeader

Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Stream:
    """What one layer selected for one request, step by step."""

    request: int
    layer: int
    selections: Int32  # [steps, k], -1 where shorter
    context_lens: Int32  # [steps], the newest position included


class Trace:
    """An open trace. `TraceError` names the file and what is wrong with it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._bytes: bytes | mmap.mmap = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise TraceError(f"{self.path}: no such trace; make one with `python -m workloads record`") from error
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise TraceError(f"{self.path}: cannot be read as a trace ({error})") from error
        self.header, self._index = self._read_tail()

    @property
    def streams(self) -> list[tuple[int, int]]:
        """(request, layer) of every stream, sorted."""
        return sorted({(int(entry["request"]), int(entry["layer"])) for entry in self._index})

    @property
    def requests(self) -> list[int]:
        return sorted({request for request, _ in self.streams})

    @property
    def layers(self) -> list[int]:
        return sorted({layer for _, layer in self.streams})

    @property
    def num_selections(self) -> int:
        """Selections in all: one for each request, layer and step."""
        return int(self._index["steps"].sum())

    @property
    def num_positions(self) -> int:
        return int(self._index["positions"].sum())

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._bytes)

    @property
    def prompt_len(self) -> int:
        """Of the first request: positions before the first recorded step's own."""
        return int(next(self.blocks(*self.streams[0]))[1][0]) - 1

    @property
    def most_steps(self) -> int:
        """Of the longest stream."""
        return max(self.num_steps(*key) for key in self.streams)

    def num_steps(self, request: int, layer: int) -> int:
        return int(self._entries(request, layer)["steps"].sum())

    def stream(self, request: int, layer: int) -> Stream:
        """All steps of one stream. Raises KeyError for one that the trace has not, TraceError for damage."""
        entries = self._entries(request, layer)
        if not len(entries):
            raise KeyError(f"{self.path}: no selections of request {request}, layer {layer}")
        parts = [self._decode(entry) for entry in entries]
        selections, context_lens = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Stream(request, layer, selections, context_lens)

    def blocks(self, request: int, layer: int) -> Iterator[tuple[Int32, Int32]]:
        """The steps of one stream a chunk at a time, as (selections [steps, k], context lengths [steps])."""
        return (self._decode(entry) for entry in self._entries(request, layer))

    def __iter__(self) -> Iterator[Stream]:
        """Every stream, one decoded at a time."""
        return (self.stream(*key) for key in self.streams)

    def verify(self) -> None:
        """Check and decode every chunk; TraceError at the first that is damaged."""
        for entry in self._index:
            self._decode(entry)

    def _entries(self, request: int, layer: int) -> NDArray[np.void]:
        entries = self._index[(self._index["request"] == request) & (self._index["layer"] == layer)]
        return entries[np.argsort(entries["first_step"])]

    def _decode(self, entry: np.void) -> tuple[Int32, Int32]:
        offset = int(entry["offset"])
        data = self._bytes[offset : offset + int(entry["size"])]
        where = f"{self.path}: the chunk at byte {offset} (request {entry['request']}, layer {entry['layer']})"
        if zlib.crc32(data) != int(entry["crc32"]):
            raise TraceError(f"{where} is damaged: its checksum differs; copy or record the trace again")
        try:
            return decode(data, width=self.header.top_k, ordered=self.header.ordered)
        except (ValueError, zlib.error) as error:
            raise TraceError(f"{where} cannot be decoded ({error}): it was not written by this program") from error

    def _read_tail(self) -> tuple[TraceHeader, NDArray[np.void]]:
        data, path = self._bytes, self.path
        if len(data) < START.size or data[: len(MAGIC)] != MAGIC:
            raise TraceError(
                f"{path} is not a selection trace: it begins with {bytes(data[:8])!r}, not {MAGIC!r}; other formats "
                "are brought in with `python -m workloads import`"
            )
        _, version, _ = START.unpack_from(data)
        if version != VERSION:
            raise TraceError(f"{path} is a trace of format version {version}; this program reads version {VERSION}")
        if len(data) < START.size + END.size or data[-len(END_MAGIC) :] != END_MAGIC:
            raise TraceError(f"{path} is truncated: its {len(data)} bytes end without an index; copy it again")
        offset, size, crc, _, _ = END.unpack_from(data, len(data) - END.size)
        if size != len(data) or not START.size <= offset <= size - END.size - 4:
            raise TraceError(f"{path} is damaged: it should have {size} bytes and has {len(data)}; copy it again")
        tail = data[offset : len(data) - END.size]
        if zlib.crc32(tail) != crc:
            raise TraceError(f"{path} is damaged: the checksum of its index differs; copy or record it again")
        (length,) = struct.unpack_from("<I", tail)
        try:
            header = TraceHeader.from_json(tail[4 : 4 + length])
        except ValueError as error:
            raise TraceError(f"{path}: {error}") from error
        return header, np.frombuffer(tail, INDEX, offset=4 + length)
