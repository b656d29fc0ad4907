"""exact_topk, window and nsa against plain formulations in float64; what every selector's state costs."""

from __future__ import annotations

import math

import pytest
import torch
from engine_cells import MODELS, cell_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.footprint import Footprint
from harness.engine.selectors import make_selector
from harness.engine.selectors.base import Selector

K, ROWS = 16, 3
SHAPES = {"exact_gqa": (6, 2, 16, 16**-0.5), "exact_mla": (2, 1, 48, 32**-0.5)}  # heads, kv heads, width, scale


def feed(selector: Selector, row: int, keys: Tensor, cuts: list[int]) -> None:
    """Prefill keys of positions 0.. in chunks that end at `cuts`, then append the rest one by one."""
    for start, end in zip([0, *cuts], cuts, strict=False):
        selector.extend(0, ChunkBatch.of(row, start, end - start), keys[start:end])
    for position in range(cuts[-1], len(keys)):
        selector.append(0, DecodeBatch.of([row], [position + 1]), keys[position : position + 1])


def attention_mass(query: Tensor, keys: Tensor, scale: float) -> list[float]:
    """The softmax weight of every position, summed over the query heads: loops over float64."""
    heads, kv_heads = len(query), keys.shape[1]
    total = [0.0] * len(keys)
    for head in range(heads):
        own = keys[:, head // (heads // kv_heads)].double()
        logits = [float(query[head].double() @ key) * scale for key in own]
        top = max(logits)
        weights = [math.exp(x - top) for x in logits]
        for i, weight in enumerate(weights):
            total[i] += weight / sum(weights)
    return total


@pytest.mark.parametrize("model", SHAPES)
def test_exact_topk_keeps_the_most_attention_any_selection_can(model: str) -> None:
    torch.manual_seed(0)
    heads, kv_heads, width, scale = SHAPES[model]
    selector, rows, lengths = make_selector(cell_of(model, "full_kv"), ROWS), [2, 0, 1], [90, K, 5]
    keys = [torch.randn(length, kv_heads, width) for length in lengths]
    for row, own in zip(rows, keys, strict=True):
        feed(selector, row, own if model == "exact_gqa" else own[:, 0], cuts=[len(own) // 3, len(own) - 2])
    queries = 2 * torch.randn(3, heads, width)
    selection = selector.select(0, DecodeBatch.of(rows, lengths), (queries,))
    assert (selection.dtype, selection.shape) == (torch.int32, (3, K))
    for i, length in enumerate(lengths):
        chosen = [p for p in selection[i].tolist() if p >= 0]
        assert len(set(chosen)) == len(chosen) == min(K, length)
        mass = attention_mass(queries[i], keys[i], scale)
        best = sum(sorted(mass)[-K:])
        assert sum(mass[p] for p in chosen) == pytest.approx(best, rel=1e-5)
        assert length <= K or best < 0.99 * heads  # something is left out that the choice could have been wrong about


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    top_k=st.integers(1, 20),
    sink=st.integers(0, 19),
)
def test_window_is_the_first_and_the_newest(lengths: list[int], top_k: int, sink: int) -> None:
    sink = min(sink, top_k - 1)
    selector = make_selector(cell_of("window", "full_kv", f"selector.top_k={top_k}", f"selector.sink={sink}"), ROWS)
    selection = selector.select(0, DecodeBatch.of(list(range(len(lengths))), lengths), ())
    assert selection.dtype == torch.int32
    for chosen, length in zip(selection.tolist(), lengths, strict=True):
        expected = set(range(min(sink, length))) | set(range(max(0, length - (top_k - sink)), length))
        if length <= top_k:
            expected = set(range(length))
        real = [p for p in chosen if p != -1]
        assert set(real) == expected and len(real) == len(expected)


TOKENS, HEADS, WIDTH = 2, 4, 16  # of the small csa model


def entry_scores(queries: Tensor, weights: Tensor, keys: Tensor) -> list[float]:
    """Equation 16 of the DeepSeek-V4 report: the lightning indexer's score, of entries."""
    return [
        sum(float(w) * max(0.0, float(q.double() @ key.double())) for q, w in zip(queries, weights, strict=True))
        for key in keys
    ]


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 34, 77])
def test_nsa_selects_the_best_of_the_entries_that_are_complete(length: int) -> None:
    """In decode and, for the last query of a chunk, in prefill: floor(length / 2) entries may be seen."""
    torch.manual_seed(length)
    known = length // TOKENS
    keys, queries, weights = torch.randn(known, WIDTH), torch.randn(1, HEADS, WIDTH), torch.randn(1, HEADS)
    selector = make_selector(cell_of("nsa", "full_kv"), ROWS)
    start = length // 2
    for begin, end in ((0, start), (start, length)):
        selector.extend(0, ChunkBatch.of(1, begin, end - begin), keys[begin // TOKENS : end // TOKENS])
    chosen = [p for p in selector.select(0, DecodeBatch.of([1], [length]), (queries, weights))[0].tolist() if p >= 0]
    scores = entry_scores(queries[0], weights[0], keys)
    assert len(set(chosen)) == len(chosen) == min(K, known)
    assert sum(scores[p] for p in chosen) == pytest.approx(sum(sorted(scores)[-K:]) if scores else 0, abs=1e-4)

    count = length - start
    query = (queries.expand(count, -1, -1), weights.expand(count, -1))
    mask = selector.prefill_mask(0, ChunkBatch.of(1, start, count), query)
    assert mask is not None
    assert mask.shape == (count, known)
    assert mask[-1].nonzero().flatten().tolist() == sorted(chosen)
    for i in range(count):
        assert int(mask[i].sum()) == min(K, (start + i + 1) // TOKENS)
        assert not mask[i, (start + i + 1) // TOKENS :].any()


def test_nsa_appends_only_the_entries_that_a_token_completes() -> None:
    torch.manual_seed(0)
    selector = make_selector(cell_of("nsa", "full_kv"), ROWS)
    keys = selector.state[0]
    keys.zero_()
    given_keys = torch.ones(3, WIDTH)
    selector.append(1, DecodeBatch.of([2, 0, 1], [7, 8, 2]), given_keys)
    written = keys.ne(0).all(-1).nonzero().tolist()
    assert written == [[1, 0, 3], [1, 1, 0]]


@pytest.mark.parametrize("model", MODELS)
def test_the_state_of_a_whole_context_is_what_the_budget_counts(model: str) -> None:
    config = cell_of(model, "full_kv")
    selector = make_selector(config, ROWS)
    held = sum(part.numel() * part.element_size() for part in selector.state)
    assert held == ROWS * Footprint(config).request(config.context_len).selection_state


def test_index_keys_in_a_byte_each_cost_a_quarter_and_select_alike() -> None:
    """As DeepSeek and GLM store them: float8 with 3 bits of mantissa, 6% from one value to the next."""
    torch.manual_seed(3)
    configs = [cell_of("dsa", "full_kv"), cell_of("dsa", "full_kv", "model.index_dtype=float8_e4m3fn")]
    keys, query = torch.randn(80, 16), (torch.randn(1, 4, 16), torch.rand(1, 4))
    chosen = []
    for config in configs:
        selector = make_selector(config, ROWS)
        feed(selector, 1, keys, cuts=[50])
        chosen.append(set(selector.select(0, DecodeBatch.of([1], [80]), query)[0].tolist()))
    wide, narrow = (Footprint(config).request(80).selection_state for config in configs)
    assert wide == 4 * narrow
    assert len(chosen[0] & chosen[1]) >= K - 3
