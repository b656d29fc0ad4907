"""Selections of other engines as traces: SGLang's `indexer_topk`, and the JSONL of DeepSeek-V3.2 experiments.

Both give positions of the request's own text. An engine that gives places in its memory instead is found out where
one of them lies outside the context.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.traces.layout import TraceHeader
from workloads.traces.writer import TraceWriter

_MOST_LAYERS = 1 << 16
Int32 = NDArray[np.int32]
_OWN = "give the model's own --layers and --top-k"
_PARTS_STEPS = 64
_SURELY = 30.0  # common positions expected of two selections at random: that there is none has a chance of e^-30


def import_sglang(
    source: Path, target: Path, *, model: str, num_layers: int, top_k: int, include_prompt: bool = False
) -> None:
    """Responses of SGLang's `/generate`, each with `meta_info.indexer_topk`: base64 of int32 [tokens, layers, k].

    source: JSON (a response or a list of them) or JSONL. The rows are what positions selected, from the first one up to
    the last but one of the text, whose last token was never fed in (SGLang 0.5.23, state_capturer): as many as
    `meta_info` says, or the shape is not this one. Those of the prompt (`prompt_tokens`) are left out unless asked for,
    since prefill keeps no cache. Raises ValueError naming the file, the response and what is wrong with it.
    """
    header = _header(source, model, "sglang", top_k)
    with TraceWriter(target, header) as writer:
        for request, response in enumerate(_responses(source)):
            where = f"{source}: response {request}"
            selections, prompt_tokens = _indexer_topk(response, where, num_layers, top_k)
            first = 0 if include_prompt else prompt_tokens
            context_lens = np.arange(first + 1, len(selections) + 1, dtype=np.int32)
            if not len(context_lens):
                raise ValueError(
                    f"{where} has {len(selections)} rows for {prompt_tokens} prompt tokens: no decode step"
                )
            _check_shape(selections[first:], context_lens, where)
            for layer in range(num_layers):
                steps = np.ascontiguousarray(selections[first:, layer])
                try:
                    writer.append(request, layer, steps, context_lens)
                except ValueError as error:
                    raise ValueError(f"{where}: {error}; indexer_topk must hold positions, not cache slots") from error
                writer.end_stream(request, layer)


def _responses(source: Path) -> Iterator[dict[str, Any]]:
    text = _text(source)
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        yield from _lines(source, text)
        return
    found = plain if isinstance(plain, list) else [plain]
    if not found:
        raise ValueError(f"{source} holds no response")
    yield from found


def _indexer_topk(response: Any, where: str, num_layers: int, top_k: int) -> tuple[Int32, int]:
    """The rows [tokens, layers, k] and the number of prompt tokens."""
    try:
        info = response["meta_info"]
        encoded, prompt_tokens, completion_tokens = (
            info[key] for key in ("indexer_topk", "prompt_tokens", "completion_tokens")
        )
        raw = base64.b64decode(encoded, validate=True)
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{where} has no meta_info with indexer_topk, prompt_tokens and completion_tokens: start SGLang with "
            "--enable-return-indexer-topk and ask for return_indexer_topk"
        ) from error
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{where}: indexer_topk is not base64 ({error})") from error
    for key, count in (("prompt_tokens", prompt_tokens), ("completion_tokens", completion_tokens)):
        if type(count) is not int or count < 0:
            raise ValueError(f"{where}: {key} is {count!r:.40}, no number of tokens")
    row = 4 * num_layers * top_k
    if not raw or len(raw) % row:
        raise ValueError(
            f"{where}: indexer_topk has {len(raw)} bytes, no multiple of {num_layers} layers x k={top_k} x 4: {_OWN}"
        )
    selections = np.frombuffer(raw, "<i4").reshape(-1, num_layers, top_k).astype(np.int32)
    fed = prompt_tokens + completion_tokens - 1
    if len(selections) != fed:
        raise ValueError(
            f"{where} has {len(selections)} rows of {num_layers} layers x k={top_k}, its text {fed} positions that "
            f"were fed in: {_OWN}"
        )
    return selections, prompt_tokens


def _check_shape(selections: Int32, context_lens: Int32, where: str) -> None:
    """Rows [steps, layers, k] that cannot be of this shape: k too large, so that a row holds two layers' selections;
    or too small, so that neighbouring layers are parts of one selection. Raises ValueError.
    """
    for layer in range(selections.shape[1]):
        for step, row in enumerate(selections[:, layer]):
            taken = row[row >= 0]
            name = f"{where}, layer {layer}, context {context_lens[step]}"
            if (twice := _twice(taken)) is not None:
                raise ValueError(f"{name}: position {twice} is selected twice: {_OWN}")
            if len(taken) < min(len(row), context_lens[step]):
                raise ValueError(f"{name}: {len(taken)} of k={len(row)} positions are selected: {_OWN}")
    if selections.shape[1] < 2:
        return
    pairs = selections[:_PARTS_STEPS, :2]
    shared = sum(int(np.isin(a[a >= 0], b).sum()) for a, b in pairs)
    by_chance = float((len(pairs[0, 0]) ** 2 / context_lens[:_PARTS_STEPS]).sum())
    if shared == 0 and by_chance > _SURELY:
        raise ValueError(
            f"{where}: layers 0 and 1 share no position in {len(pairs)} steps, as if they were parts of one: {_OWN}"
        )


def _twice(positions: NDArray[np.int32]) -> int | None:
    """A position that occurs more than once."""
    found = np.sort(positions)
    again = found[1:][found[1:] == found[:-1]]
    return int(again[0]) if len(again) else None


def import_dsa_jsonl(source: Path, target: Path, *, model: str) -> None:
    """JSONL with a line per (decode step, request, layer): request_id, layer_id, seq_len_current, selected_token_pos.

    Lines of other events (`event` present and not `dsa_topk`) are left out. Steps must come in order and without
    gaps: a sampled trace says nothing on reuse from step to step. Positions are distinct whole numbers, -1 for none.
    Raises ValueError naming the file and the line.
    """
    top_k = max((len(line["selected_token_pos"]) for _, line in _dsa_lines(source)), default=0)
    if not top_k:
        raise ValueError(f"{source} has no line with selected_token_pos")
    numbers: dict[Any, int] = {}
    context: dict[tuple[int, int], int] = {}
    with TraceWriter(target, _header(source, model, "dsa_jsonl", top_k)) as writer:
        for number, line in _dsa_lines(source):
            request = numbers.setdefault(line["request_id"], len(numbers))
            key = (request, line["layer_id"])
            length = line["seq_len_current"]
            if key in context and length != context[key] + 1:
                raise ValueError(
                    f"{source}, line {number}: context length {length} of request {line['request_id']!r}, layer "
                    f"{key[1]} follows {context[key]}; steps must come in order, without gaps"
                )
            context[key] = length
            try:
                writer.append(*key, _positions(line["selected_token_pos"]), np.array([length], np.int32))
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{source}, line {number}: {error}") from error


def _positions(listed: list[Any]) -> Int32:
    """One selection, int32 [1, len]. Raises ValueError, or OverflowError."""
    for at, position in enumerate(listed):
        if type(position) is not int:
            raise ValueError(f"selected_token_pos[{at}] is {position!r:.40}, no whole number")
    row = np.array([listed], np.int32)
    if (twice := _twice(row[row >= 0])) is not None:
        raise ValueError(f"selected_token_pos has position {twice} twice")
    return row


def _dsa_lines(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers from 1, and the lines with a selection."""
    wanted = {"request_id": (int, str), "layer_id": int, "seq_len_current": int, "selected_token_pos": list}
    with _opened(source) as file:
        for number, text in enumerate(_decoded(source, file), 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{source}, line {number} is not JSON ({error})") from error
            if not isinstance(line, dict) or line.get("event", "dsa_topk") != "dsa_topk":
                continue
            for key, kind in wanted.items():
                value = line.get(key)
                if not isinstance(value, kind) or isinstance(value, bool):  # type: ignore[arg-type]
                    raise ValueError(f"{source}, line {number}: {key} is {value!r:.40}; see DSA's trace format")
            for key, least in (("layer_id", 0), ("seq_len_current", 1)):
                if line[key] < least:
                    raise ValueError(f"{source}, line {number}: {key} is {line[key]}; it must be at least {least}")
            if line["layer_id"] >= _MOST_LAYERS:
                raise ValueError(f"{source}, line {number}: layer_id is {line['layer_id']!r:.40}, no number of a layer")
            yield number, line


def _header(source: Path, model: str, kind: str, top_k: int) -> TraceHeader:
    provenance = {"file": source.name, "bytes": source.stat().st_size if source.is_file() else 0}
    return TraceHeader(
        model=model, selector="dsa", top_k=top_k, source=kind, ordered=True, provenance={"imported": provenance}
    )


def _lines(source: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{source}, line {number} is neither JSON nor JSONL ({error})") from error


def _text(source: Path) -> str:
    with _opened(source) as file:
        return "".join(_decoded(source, file))


def _decoded(source: Path, file: Any) -> Iterator[str]:
    """The lines of an open file. Raises ValueError naming it where they are no text, or there are none."""
    empty = True
    try:
        for line in file:
            empty = False
            yield line
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text") from error
    if empty:
        raise ValueError(f"{source} is empty")


def _opened(source: Path) -> Any:
    try:
        return source.open(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{source}: {error.strerror}") from error
