"""Other engines' selections become traces with the same selections, and what cannot be one is refused by name."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.traces import Trace
from workloads.traces.importers import import_dsa_jsonl, import_sglang

LAYERS, K = 3, 5


def rows(tokens: int, seed: int = 0) -> np.ndarray:
    """int32 [tokens, LAYERS, K]: what position t selects among [0, t], -1 where there are fewer."""
    rng = np.random.default_rng(seed)
    out = np.full((tokens, LAYERS, K), -1, dtype=np.int32)
    for t in range(tokens):
        for layer in range(LAYERS):
            chosen = rng.permutation(t + 1)[:K]
            out[t, layer, : len(chosen)] = chosen
    return out


def response(selections: np.ndarray, prompt_tokens: int, start: int = 0) -> dict[str, Any]:
    """With the rows from position `start` on; the text has one token more than the last row's position."""
    completion = start + len(selections) + 1 - prompt_tokens
    encoded = base64.b64encode(selections.astype("<i4").tobytes()).decode()
    info = {"id": "x", "prompt_tokens": prompt_tokens, "completion_tokens": completion, "indexer_topk": encoded}
    return {"text": "…", "meta_info": info}


def from_sglang(tmp_path: Path, content: str, **options: Any) -> Trace:
    (tmp_path / "r.json").write_text(content)
    shape = {"num_layers": LAYERS, "top_k": K} | options
    import_sglang(tmp_path / "r.json", tmp_path / "out.trace", model="m", **shape)
    return Trace(tmp_path / "out.trace")


@pytest.mark.parametrize("form", ["one", "list", "lines"])
def test_sglang_responses(tmp_path: Path, form: str) -> None:
    taken = [(rows(30), 20)] if form == "one" else [(rows(30), 20), (rows(90, 1), 7)]
    plain = [response(*one) for one in taken]
    content = {
        "one": json.dumps(plain[0]),
        "list": json.dumps(plain),
        "lines": "\n".join(map(json.dumps, plain)) + "\n",
    }[form]
    trace = from_sglang(tmp_path, content)
    assert (trace.header.source, trace.header.selector, trace.header.top_k) == ("sglang", "dsa", K)
    assert trace.streams == [(r, layer) for r in range(len(taken)) for layer in range(LAYERS)]
    for request, (selections, prompt) in enumerate(taken):
        for layer in range(LAYERS):
            stream = trace.stream(request, layer)
            assert stream.context_lens.tolist() == list(range(prompt + 1, len(selections) + 1))
            assert (np.sort(stream.selections) == np.sort(selections[prompt:, layer])).all()


def test_sglang_with_the_prompts_selections(tmp_path: Path) -> None:
    trace = from_sglang(tmp_path, json.dumps(response(rows(30), 20)), include_prompt=True)
    assert trace.stream(0, 0).context_lens.tolist() == list(range(1, 31))


def test_sglang_rows_may_begin_late(tmp_path: Path) -> None:
    for start in (5, 20, 24):
        trace = from_sglang(tmp_path, json.dumps(response(rows(30)[start:], 20, start)))
        assert trace.stream(0, 1).context_lens.tolist() == list(range(max(20, start) + 1, 31))
        assert (np.sort(trace.stream(0, 1).selections) == np.sort(rows(30)[max(20, start) :, 1])).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "line 1 is neither JSON nor JSONL"),
        ("[{}]", "response 0 has no meta_info.indexer_topk.*--enable-return-indexer-topk"),
        ('{"meta_info": {"prompt_tokens": 3, "indexer_topk": null}}', "has no meta_info.indexer_topk"),
        ('{"meta_info": {"prompt_tokens": 3, "indexer_topk": "%%"}}', "not base64"),
        ('{"meta_info": {"prompt_tokens": 3, "indexer_topk": "AAAA"}}', "3 bytes, no multiple of 3 layers x k=5"),
        (json.dumps(response(rows(9), 9)), "9 rows.*prompt tokens"),
        (json.dumps(response(rows(30), 20, -4)), "30 rows, 4 more than its text has positions"),
        (json.dumps(response(rows(30) + 40_000, 20)), "must hold positions, not cache slots"),
    ],
)
def test_sglang_refusals(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_sglang(tmp_path, content)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.json"]


def dsa_lines(steps: int = 70, prompt: int = 12) -> list[dict[str, Any]]:
    """Two requests, in the order of a decoding loop: step, request, layer."""
    selections = {request: rows(prompt + steps + 1, seed) for request, seed in (("a", 1), ("b", 2))}
    return [
        {
            "event": "dsa_topk",
            "request_id": request,
            "layer_id": layer,
            "step_idx": prompt + step,
            "seq_len_current": prompt + step + 1,
            "selected_token_pos": [p for p in selections[request][prompt + step, layer].tolist() if p >= 0],
            "scores_stats": {"min": 0.0},
        }
        for step in range(steps)
        for request in ("a", "b")
        for layer in (0, 2)
    ]


def from_dsa(tmp_path: Path, lines: list[Any]) -> Trace:
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    import_dsa_jsonl(tmp_path / "t.jsonl", tmp_path / "out.trace", model="deepseek-v3.2")
    return Trace(tmp_path / "out.trace")


def test_dsa_jsonl(tmp_path: Path) -> None:
    lines = dsa_lines()
    trace = from_dsa(tmp_path, [{"event": "prefill", "request_id": "a"}, *lines, {"event": "end"}])
    assert (trace.header.source, trace.header.top_k) == ("dsa_jsonl", K)
    assert trace.streams == [(0, 0), (0, 2), (1, 0), (1, 2)]
    for number, name in enumerate("ab"):
        for layer in (0, 2):
            mine = [line for line in lines if line["request_id"] == name and line["layer_id"] == layer]
            stream = trace.stream(number, layer)
            assert stream.context_lens.tolist() == [line["seq_len_current"] for line in mine]
            found = [sorted(p for p in row if p >= 0) for row in stream.selections.tolist()]
            assert found == [sorted(line["selected_token_pos"]) for line in mine]


def test_dsa_refusals(tmp_path: Path) -> None:
    lines = dsa_lines(4)
    sampled = [line for line in lines if line["step_idx"] != 13]
    with pytest.raises(ValueError, match="line 5: context length 15 of request 'a', layer 0 follows 13.*without gaps"):
        from_dsa(tmp_path, sampled)
    with pytest.raises(ValueError, match="line 2: layer_id is None"):
        from_dsa(tmp_path, [lines[0], {**lines[1], "layer_id": None}])
    with pytest.raises(ValueError, match="line 1: .*position 99 is outside a context of 13"):
        from_dsa(tmp_path, [{**lines[0], "selected_token_pos": [99]}])
    with pytest.raises(ValueError, match="no line with selected_token_pos"):
        from_dsa(tmp_path, [{"event": "end"}])
    (tmp_path / "t.jsonl").write_text('{"event"\n')
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        import_dsa_jsonl(tmp_path / "t.jsonl", tmp_path / "out.trace", model="m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.jsonl"]
