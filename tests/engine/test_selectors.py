"""DSA and Quest against plain formulations in Python floats (float64) and loops."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from engine_cells import cell_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.selectors import make_selector
from harness.engine.selectors.base import Selector
from harness.engine.selectors.dsa import DSA
from harness.engine.selectors.index_keys import IndexKeys
from harness.engine.selectors.one_by_one import OneByOne
from harness.engine.selectors.quest import Quest
from harness.schema import DType

K = 16  # of the cells: positions, for Quest four pages of four
PAGE = 4
ROWS = 3
CLOSE = 1e-4  # float32 against float64, scores of order 1 to 10
HEADS, INDEX_DIM = 4, 16  # of glm_tiny's indexer
Q_HEADS, KV_HEADS, HEAD_DIM = 6, 2, 16  # of the small GQA model


def dsa() -> DSA:
    selector = make_selector(cell_of("dsa", "full_kv"), ROWS)
    assert isinstance(selector, DSA)
    return selector


def quest() -> Quest:
    selector = make_selector(cell_of("quest", "full_kv"), ROWS)
    assert isinstance(selector, Quest)
    return selector


def feed(selector: Selector, row: int, keys: Tensor, cuts: list[int], layer: int = 0) -> None:
    """Prefill keys of positions 0.. in chunks that end at `cuts`, then append the rest one by one."""
    start = 0
    for end in cuts:
        selector.extend(layer, ChunkBatch.of(row, start, end - start), keys[start:end])
        start = end
    for position in range(start, len(keys)):
        selector.append(layer, DecodeBatch.of([row], [position + 1]), keys[position : position + 1])


def index_score(query: list[list[float]], weights: list[float], key: list[float]) -> float:
    """DeepSeek-V3.2 report, equation 1, as it is written there."""
    total = 0.0
    for head, weight in zip(query, weights, strict=True):
        dot = sum(a * b for a, b in zip(head, key, strict=True))
        total += weight * max(0.0, dot)
    return total


def assert_top(selected: list[int], scores: list[float], count: int) -> None:
    """`selected` are `count` different positions, none clearly worse than one left out."""
    assert len(selected) == len(set(selected)) == count
    worst = min(scores[p] for p in selected)
    left_out = [s for p, s in enumerate(scores) if p not in set(selected)]
    assert all(s <= worst + CLOSE for s in left_out)


def test_dsa_selects_the_best_positions_by_the_papers_score() -> None:
    torch.manual_seed(0)
    selector, lengths, rows = dsa(), [90, 16, 5], [2, 0, 1]
    keys = [torch.randn(length, INDEX_DIM) for length in lengths]
    for row, own in zip(rows, keys, strict=True):
        feed(selector, row, own, cuts=[len(own) // 3 or 1, len(own) - 2])
    queries, weights = torch.randn(3, HEADS, INDEX_DIM), torch.randn(3, HEADS)
    selection = selector.select(0, DecodeBatch.of(rows, lengths), (queries, weights))
    assert selection.dtype == torch.int32
    assert selection.shape == (3, K)
    for i, length in enumerate(lengths):
        scores = [index_score(queries[i].tolist(), weights[i].tolist(), key) for key in keys[i].tolist()]
        chosen = [p for p in selection[i].tolist() if p >= 0]
        assert_top(chosen, scores, min(K, length))
        assert selection[i].tolist().count(-1) == K - min(K, length)


def test_scores_in_bfloat16_lose_nothing_in_the_sum_over_heads() -> None:
    """64 heads as published models have: no position left out beats one taken by more than its terms' own rounding."""
    torch.manual_seed(3)
    heads, length, k = 64, 4000, 400
    model = replace(cell_of("dsa", "full_kv").model, dtype=DType.bfloat16, index_dtype=None)
    keys = torch.randn(length, INDEX_DIM).bfloat16()
    queries, weights = torch.randn(1, heads, INDEX_DIM).bfloat16(), torch.rand(1, heads).bfloat16()
    stored = IndexKeys(model, 1, 1, length)
    stored.extend(0, ChunkBatch.of(0, 0, length), keys)

    terms = weights[0].double()[:, None] * (queries[0].double() @ keys.double().T).relu()
    scores, rounding = terms.sum(0), terms.norm(dim=0) * 2**-8  # half a unit of 8 bits each, in no common direction
    visible = torch.ones(1, length, dtype=torch.bool)
    selections = {
        "prefill": stored.prefill_mask(0, 0, (queries, weights), visible, k)[0].nonzero().flatten(),
        "decode": stored.select(0, DecodeBatch.of([0], [length]), (queries, weights), k)[0].long(),
    }
    for chosen in selections.values():
        left = torch.ones(length, dtype=torch.bool).index_fill_(0, chosen, False)
        assert len(chosen.unique()) == k
        assert (scores - rounding)[left].max() <= (scores + rounding)[chosen].min()
    assert set(selections["prefill"].tolist()) == set(selections["decode"].tolist())


def test_dsa_width_is_the_longest_sequence_when_shorter_than_k() -> None:
    torch.manual_seed(1)
    selector = dsa()
    for row, length in enumerate((6, 3, 1)):
        feed(selector, row, torch.randn(length, INDEX_DIM), cuts=[length])
    query = (torch.randn(3, HEADS, INDEX_DIM), torch.randn(3, HEADS))
    selection = selector.select(0, DecodeBatch.of([0, 1, 2], [6, 3, 1]), query)
    assert [sorted(row) for row in selection.tolist()] == [
        [0, 1, 2, 3, 4, 5],
        [-1, -1, -1, 0, 1, 2],
        [-1, -1, -1, -1, -1, 0],
    ]


@pytest.mark.parametrize(("start", "end"), [(0, 16), (0, 17), (11, 16), (13, 40), (40, 77)])
def test_dsa_prefill_mask_is_each_querys_own_top_k(start: int, end: int) -> None:
    torch.manual_seed(2)
    selector, keys = dsa(), torch.randn(end, INDEX_DIM)
    feed(selector, 1, keys, cuts=[start, end] if start else [end])
    queries, weights = torch.randn(end - start, HEADS, INDEX_DIM), torch.randn(end - start, HEADS)
    mask = selector.prefill_mask(0, ChunkBatch.of(1, start, end - start), (queries, weights))
    if end <= K:
        assert mask is None  # causal attention to all, which is each query's top k
        return
    assert mask is not None
    assert mask.shape == (end - start, end)
    for i, position in enumerate(range(start, end)):
        scores = [index_score(queries[i].tolist(), weights[i].tolist(), key) for key in keys[: position + 1].tolist()]
        assert_top(mask[i].nonzero().flatten().tolist(), scores, min(K, position + 1))


def test_dsa_decode_selects_what_prefill_would() -> None:
    torch.manual_seed(3)
    selector, keys = dsa(), torch.randn(60, INDEX_DIM)
    feed(selector, 0, keys, cuts=[31, 60])
    query = (torch.randn(60, HEADS, INDEX_DIM), torch.randn(60, HEADS).abs())
    mask = selector.prefill_mask(0, ChunkBatch.of(0, 0, 60), query)
    assert mask is not None
    for position in range(2 * K, 60):  # early, positions of score 0 tie for the last places
        one = (query[0][position : position + 1], query[1][position : position + 1])
        chosen = selector.select(0, DecodeBatch.of([0], [position + 1]), one)[0].tolist()
        assert sorted(chosen) == mask[position].nonzero().flatten().tolist()


def page_keys(keys: Tensor, page: int) -> list[list[list[float]]]:
    """[positions of the page][kv head][channel]"""
    return keys[page * PAGE : (page + 1) * PAGE].tolist()


def page_score(query: list[list[float]], members: list[list[list[float]]]) -> float:
    """Quest section 3.3: per query head and channel the larger of q * min and q * max, summed; heads summed."""
    total = 0.0
    for head, q in enumerate(query):
        group = head // (Q_HEADS // KV_HEADS)
        for channel, value in enumerate(q):
            column = [key[group][channel] for key in members]
            total += max(value * min(column), value * max(column))
    return total


def random_keys(length: int) -> Tensor:
    return torch.randn(length, KV_HEADS, HEAD_DIM)


def test_quest_selects_the_best_pages_and_the_newest() -> None:
    torch.manual_seed(4)
    selector, lengths, rows = quest(), [91, 40, 7], [1, 2, 0]
    keys = [random_keys(length) for length in lengths]
    for row, own in zip(rows, keys, strict=True):
        feed(selector, row, own, cuts=[len(own) // 3, len(own) - 3])
    queries = torch.randn(3, Q_HEADS, HEAD_DIM)
    selection = selector.select(0, DecodeBatch.of(rows, lengths), (queries,))
    assert selection.dtype == torch.int32
    assert selection.shape == (3, K)
    for i, length in enumerate(lengths):
        chosen = [p for p in selection[i].tolist() if p >= 0]
        newest = (length - 1) // PAGE
        pages = sorted({p // PAGE for p in chosen})
        assert sorted(chosen) == [p for page in pages for p in range(page * PAGE, min(length, (page + 1) * PAGE))]
        assert newest in pages
        scores = [page_score(queries[i].tolist(), page_keys(keys[i], page)) for page in range(newest)]
        assert_top([page for page in pages if page != newest], scores, min(K // PAGE, newest + 1) - 1)


def test_quest_takes_the_newest_page_even_when_it_scores_lowest() -> None:
    torch.manual_seed(5)
    selector, keys, queries = quest(), random_keys(83), torch.randn(1, Q_HEADS, HEAD_DIM)
    mean = queries.view(KV_HEADS, -1, HEAD_DIM).sum(1)
    keys[80:] = -10 * mean
    feed(selector, 0, keys, cuts=[80])
    chosen = selector.select(0, DecodeBatch.of([0], [83]), (queries,))[0].tolist()
    assert {80, 81, 82} <= set(chosen)
    assert chosen.count(-1) == 1  # of the newest page's four, position 83 is not there yet


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_quest_bounds_every_key_of_every_page(data: st.DataObject) -> None:
    """The property Quest rests on: no key of a page scores above the page's bound, at any scale."""
    length = data.draw(st.integers(1, 40))
    prompt = data.draw(st.integers(1, length))
    cuts = sorted({*data.draw(st.lists(st.integers(1, prompt), max_size=4)), prompt})
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    keys = random_keys(length) * 10.0 ** data.draw(st.integers(-3, 3))
    selector, queries = quest(), torch.randn(1, Q_HEADS, HEAD_DIM)
    feed(selector, 0, keys, cuts)
    bounds = selector._bounds(0, DecodeBatch.of([0], [length]), queries)[0].double()
    dots = torch.einsum("hgd,pgd->pgh", queries.view(KV_HEADS, -1, HEAD_DIM).transpose(0, 1).double(), keys.double())
    summed = dots.sum(dim=(1, 2))
    for position in range(length):
        bound = float(bounds[position // PAGE])
        assert float(summed[position]) <= bound + 1e-5 * max(1.0, float(keys.abs().max())) * Q_HEADS * HEAD_DIM
    for page in range(len(bounds)):
        expected = page_score(queries[0].tolist(), page_keys(keys, page))
        assert float(bounds[page]) == pytest.approx(expected, rel=1e-4, abs=1e-4 * float(keys.abs().max()))


@pytest.mark.parametrize("cuts", [[1, 2, 3, 30], [5, 6, 30], [4, 8, 30], [30], [7, 29], [1], [3]])
def test_quest_pages_do_not_depend_on_how_the_keys_arrived(cuts: list[int]) -> None:
    """Chunks that end inside pages, then single appends, over a row that another request used before."""
    torch.manual_seed(6)
    keys, whole, pieces = random_keys(43), quest(), quest()
    feed(pieces, 1, random_keys(60) * 100, cuts=[60])
    feed(whole, 1, keys, cuts=[43])
    feed(pieces, 1, keys, cuts)
    pages = -(-43 // PAGE)
    for page in range(pages):
        members = keys[page * PAGE : (page + 1) * PAGE].flatten(1)
        assert torch.equal(whole.low[0, 1, page], members.amin(0))
        assert torch.equal(whole.high[0, 1, page], members.amax(0))
    assert torch.equal(whole.low[0, 1, :pages], pieces.low[0, 1, :pages])
    assert torch.equal(whole.high[0, 1, :pages], pieces.high[0, 1, :pages])


@pytest.mark.parametrize("make", [dsa, quest])
def test_layers_and_rows_keep_apart(make: object) -> None:
    """Writing one layer's row leaves every other bit of the state alone."""
    torch.manual_seed(7)
    selector: Selector = make()  # type: ignore[operator]
    state = selector.state
    for part in state:
        part.zero_()
    keys = torch.randn(20, INDEX_DIM) if isinstance(selector, DSA) else random_keys(20)
    feed(selector, 1, keys, cuts=[7, 15], layer=2)
    for part in state:
        assert part[2, 1].any()
        part[2, 1] = 0
        assert not part.any()


@pytest.mark.parametrize("name", ["dsa", "quest", "dense_mla"])
def test_one_by_one_gives_each_request_its_selection_of_a_batch_of_one(name: str) -> None:
    config = cell_of(name, "full_kv", "engine.batch_invariant=true")
    selector = make_selector(config, ROWS)
    assert isinstance(selector, OneByOne)
    torch.manual_seed(8)
    rows, lengths = [2, 0, 1], [50, 3, 21]
    wide = name == "quest"
    for row, length in zip(rows, lengths, strict=True):
        feed(selector, row, random_keys(length) if wide else torch.randn(length, INDEX_DIM), cuts=[length])
    query: tuple[Tensor, ...] = (torch.randn(3, Q_HEADS, HEAD_DIM),)
    if not wide:
        query = (torch.randn(3, HEADS, INDEX_DIM), torch.randn(3, HEADS))
    together = selector.select(0, DecodeBatch.of(rows, lengths), query)
    assert together.dtype == torch.int32
    for i in range(3):
        alone = selector.select(0, DecodeBatch.of([rows[i]], [lengths[i]]), tuple(q[i : i + 1] for q in query))[0]
        assert together[i, : len(alone)].tolist() == alone.tolist()
        assert together[i, len(alone) :].eq(-1).all()


def test_dense_selects_every_position() -> None:
    selector = make_selector(cell_of("dense_mla", "full_kv"), ROWS)
    selection = selector.select(0, DecodeBatch.of([0, 2], [3, 5]), ())
    assert selection.tolist() == [[0, 1, 2, -1, -1], [0, 1, 2, 3, 4]]


def test_random_streams_keep_the_invariants() -> None:
    """Positions are of the sequence, distinct, at most k, -1 for the rest: what resolve relies on."""
    rng = random.Random(9)
    torch.manual_seed(9)
    for selector, wide in ((dsa(), False), (quest(), True)):
        lengths = [rng.randrange(1, 30) for _ in range(ROWS)]
        for row, length in enumerate(lengths):
            feed(selector, row, random_keys(length) if wide else torch.randn(length, INDEX_DIM), cuts=[length])
        for _ in range(60):
            rows = rng.sample(range(ROWS), rng.randint(1, ROWS))
            for row in rows:
                lengths[row] += 1
            batch = DecodeBatch.of(rows, [lengths[row] for row in rows])
            n = len(rows)
            selector.append(0, batch, random_keys(n) if wide else torch.randn(n, INDEX_DIM))
            query = (
                (torch.randn(n, Q_HEADS, HEAD_DIM),)
                if wide
                else (torch.randn(n, HEADS, INDEX_DIM), torch.randn(n, HEADS))
            )
            selection = selector.select(0, batch, query)
            assert selection.shape[1] <= K
            for row, chosen in zip(rows, selection.tolist(), strict=True):
                real = [p for p in chosen if p != -1]
                assert len(set(real)) == len(real) > 0
                assert all(0 <= p < lengths[row] for p in real)
