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
INFO = {"prompt_tokens": 3, "completion_tokens": 4, "indexer_topk": "AAAA"}


def rows(tokens: int, seed: int = 0) -> np.ndarray:
    """int32 [tokens, LAYERS, K]: what position t selects among [0, t], -1 where there are fewer."""
    rng = np.random.default_rng(seed)
    out = np.full((tokens, LAYERS, K), -1, dtype=np.int32)
    for t in range(tokens):
        for layer in range(LAYERS):
            chosen = rng.permutation(t + 1)[:K]
            out[t, layer, : len(chosen)] = chosen
    return out


def response(selections: np.ndarray, prompt_tokens: int, more: int = 0) -> dict[str, Any]:
    """The text has one token more than the last row's position, and `more`, which a response has not."""
    completion = len(selections) + 1 - prompt_tokens + more
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


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"num_layers": 1}, "90 rows of 1 layers x k=5, its text 30 positions"),
        ({"num_layers": 6}, "15 rows of 6 layers x k=5, its text 30 positions"),
        ({"num_layers": 1, "top_k": 15}, "response 0, layer 0, context 21: position .* is selected twice"),
    ],
)
def test_sglang_refuses_another_models_shape(tmp_path: Path, shape: dict[str, int], message: str) -> None:
    """Of the same bytes a row, and of others."""
    with pytest.raises(ValueError, match=f"r.json.*{message}.*--layers and --top-k"):
        from_sglang(tmp_path, json.dumps(response(rows(30), 20)), **shape)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.json"]


def test_sglang_refuses_halves_of_selections(tmp_path: Path) -> None:
    """Two layers of 40 positions read as four of 20: every row is a selection, but neighbours never meet."""
    rng = np.random.default_rng(0)
    selections = np.array([[rng.permutation(100)[:40] for _ in range(2)] for _ in range(130)], np.int32)
    content = json.dumps(response(selections, 100))
    assert from_sglang(tmp_path, content, num_layers=2, top_k=40).header.num_layers == 2
    with pytest.raises(ValueError, match="layers 0 and 1 share no position in 30 steps"):
        from_sglang(tmp_path, content, num_layers=4, top_k=20)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "line 1 is neither JSON nor JSONL"),
        ("[{}]", "response 0 has no meta_info with indexer_topk.*--enable-return-indexer-topk"),
        (json.dumps({"meta_info": INFO | {"indexer_topk": None}}), "has no meta_info with indexer_topk"),
        (json.dumps({"meta_info": INFO | {"indexer_topk": "%%"}}), "not base64"),
        (json.dumps({"meta_info": INFO | {"prompt_tokens": 3.5}}), "prompt_tokens is 3.5, no number of tokens"),
        (json.dumps({"meta_info": INFO | {"completion_tokens": True}}), "completion_tokens is True, no number"),
        (json.dumps({"meta_info": INFO}), "3 bytes, no multiple of 3 layers x k=5"),
        (json.dumps(response(rows(9), 9)), "9 rows.*prompt tokens"),
        (json.dumps(response(rows(30), 20, 4)), "30 rows of 3 layers x k=5, its text 34 positions"),
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
    for change, message in (
        ({"selected_token_pos": [3, 1, 3]}, "has position 3 twice"),
        ({"selected_token_pos": [3, 1.0]}, r"selected_token_pos\[1\] is 1.0, no whole number"),
        ({"selected_token_pos": [True]}, r"selected_token_pos\[0\] is True, no whole number"),
        ({"selected_token_pos": [-2]}, "position -2 is outside a context"),
        ({"selected_token_pos": [1 << 40]}, "line 1: "),
        ({"layer_id": -1}, "layer_id is -1; it must be at least 0"),
        ({"layer_id": True}, "layer_id is True"),
        ({"request_id": False}, "request_id is False"),
        ({"seq_len_current": 12.0}, "seq_len_current is 12.0"),
        ({"seq_len_current": 0}, "seq_len_current is 0; it must be at least 1"),
    ):
        with pytest.raises(ValueError, match=f"t.jsonl, line 1: .*{message}" if "line" not in message else message):
            from_dsa(tmp_path, [{**lines[0], **change}])
    with pytest.raises(ValueError, match="no line with selected_token_pos"):
        from_dsa(tmp_path, [{"event": "end"}])
    (tmp_path / "t.jsonl").write_text('{"event"\n')
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        import_dsa_jsonl(tmp_path / "t.jsonl", tmp_path / "out.trace", model="m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.jsonl"]
