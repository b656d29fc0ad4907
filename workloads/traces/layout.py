"""The file format of selection traces: what lies where, the header, and the errors of a file that is none.

    bytes 0-15     magic, version (uint32), 0 (uint32)
    chunks         one after another; each holds up to CHUNK_STEPS steps of one (request, layer), see `coding`
    tail           uint32 length of the header, header (JSON, UTF-8), index (INDEX, one entry a chunk)
    last 32 bytes  offset of the tail (uint64), size of the file (uint64), CRC-32 of the tail (uint32), 0, end magic

All numbers are little-endian. The header comes last, as in Parquet, so that a recording need not know in advance
how many requests and layers it will see. Every chunk has its CRC-32 in the index, the tail has its own: no byte is
unchecked. docs/selection_traces.md is the schema for readers in other languages.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

MAGIC = b"hsselect"
END_MAGIC = b"hsselend"
VERSION = 1
START = struct.Struct("<8sII")
END = struct.Struct("<QQII8s")
CHUNK_STEPS = 64
"""Steps of one (request, layer) coded together; the first of them is coded in full."""

INDEX = np.dtype(
    [
        ("request", "<i4"),
        ("layer", "<i4"),
        ("first_step", "<i4"),
        ("steps", "<i4"),
        ("offset", "<i8"),  # bytes from the start of the file
        ("positions", "<i8"),  # selected positions in all its steps
        ("size", "<u4"),  # bytes
        ("crc32", "<u4"),
    ]
)


class TraceError(ValueError):
    """A file that is no whole trace. The message is one line: the file, what is wrong, what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceHeader:
    """What a trace was taken from."""

    model: str
    selector: str
    top_k: int
    """k: no selection is longer."""
    source: str
    """`native`, `sglang`, `dsa_jsonl` or `synthetic`."""
    ordered: bool = False
    """Positions that can miss, for the step before had them not or as its newest, come in the selector's order, then
    the others, ascending. An unordered trace gives each selection ascending. Which of a step's misses comes first is
    all that a policy can see."""
    num_layers: int = 0
    """Layers with selections; filled in by the writer."""
    num_requests: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)
    """Free-form, JSON: config, seed, file of origin, software."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False).encode()

    @classmethod
    def from_json(cls, text: bytes) -> TraceHeader:
        """Raises ValueError for text that is no header; keys of later versions are ignored."""
        known = {f.name for f in fields(cls)}
        try:
            plain = json.loads(text)
            return cls(**{key: value for key, value in plain.items() if key in known})
        except (AttributeError, TypeError) as error:
            raise ValueError(f"its header is incomplete ({error})") from error
