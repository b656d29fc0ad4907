"""One suite for every replacement policy: equal to a slow model of it, and what holds for all of them."""

import itertools

import hisparse_kernels as hk
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_models import MODELS, drive
from streams import Small, make, small_streams

from workloads.replay import POLICIES, Lane, ReplayConfig, replay_stream

EXACT = sorted(set(POLICIES) - {"avsg"})  # avsg may lose mappings, so that it misses what it holds
QUICK = settings(max_examples=60)


def replayed(s: Small, policy: str, slots: int | None = None, **options):
    config = ReplayConfig(policy, slots or s.slots, tail=s.tail, tokens=s.tokens, **options)
    return replay_stream([(s.positions, s.seq_lens)], [config])[0]


def wanted(s: Small, row: int) -> set[int]:
    return {p for p in s.positions[row].tolist() if 0 <= p < s.seq_lens[row] - 1}


@pytest.mark.parametrize("policy", MODELS)
@settings(max_examples=150)
@given(s=small_streams(max_tokens=3))
def test_every_row_equals_the_model(policy, s):
    expected = drive(MODELS[policy](s.slots), *s.lists, tail=s.tail, tokens=s.tokens)
    selected, misses = replayed(s, policy)
    assert list(zip(selected.tolist(), misses.tolist(), strict=True)) == expected


@pytest.mark.parametrize("policy", MODELS)
def test_streams_of_many_positions_equal_the_model(policy):
    """Selections that fill several vectors of 16 and bitmaps of several words, in both orders."""
    for seed in range(8):
        tokens, k = 1 + seed // 6, 40 + 7 * seed
        s = make(seed, length=300, k=k, slots=k * tokens + 15 * seed, steps=30, tokens=tokens, tail=seed > 3)
        expected = drive(MODELS[policy](s.slots), *s.lists, tail=s.tail, tokens=s.tokens)
        selected, misses = replayed(s, policy)
        assert list(zip(selected.tolist(), misses.tolist(), strict=True)) == expected, f"seed {seed}"


@settings(max_examples=80)
@given(s=small_streams())
def test_lru_equals_the_engines_operations(s):
    """Against append and match as an engine calls them, in their torch formulation."""
    slots, prompt = s.slots, int(s.seq_lens[0]) - 1
    cache = torch.zeros(1, slots + 1, 1)
    state = torch.full((1, slots), -1, dtype=torch.int32), torch.arange(slots, dtype=torch.int32)[None].clone()
    row, expected = torch.zeros(1, dtype=torch.int64), []
    with hk.use_backend("reference"):
        if s.tail and prompt > 0:
            held = min(prompt - 1, slots)
            hk.load_row(0, prompt, *state, cache, torch.zeros(held + 1, 1))
        for i, (selection, length) in enumerate(zip(s.positions, s.seq_lens, strict=True)):
            seq_len = torch.tensor([length])
            if (s.tail and length > 1) or i > 0:
                hk.append(torch.zeros(1, 1), row, seq_len, *state, cache)
            _, plan = hk.match(torch.from_numpy(selection)[None], row, seq_len, *state)
            expected.append(int(plan.per_row))
    assert replayed(s, "lru")[1].tolist() == expected


@pytest.mark.parametrize("policy", sorted(set(EXACT) - {"belady"}))  # which has no contents before the end
@QUICK
@given(s=small_streams(max_tokens=3))
def test_misses_are_what_was_not_there(policy, s):
    """Row by row: what the step selected so far is resident, within B slots; a miss is what was not resident."""
    lane = Lane(ReplayConfig(policy, s.slots, tail=s.tail, tokens=s.tokens))
    for row, length in enumerate(s.seq_lens.tolist()):
        first = row - row % s.tokens
        before = lane.contents()
        if row == first > 0 and policy != "staging":  # what fits beside everything else becomes resident
            before |= {p for p in range(int(s.seq_lens[first - s.tokens]) - 1, length - 1) if p < s.slots}
        selected, misses = lane.feed(s.positions[row : row + 1], s.seq_lens[row : row + 1])
        after, chosen = lane.contents(), wanted(s, row)
        assert selected[0] == len(chosen) + (length - 1 in s.positions[row])
        assert misses[0] == len(chosen - before) or (row == 0 and s.tail)
        ends = s.tokens > 1 and (row + 1) % s.tokens == 0
        valid = int(s.seq_lens[first]) if ends else length
        so_far = set().union(*(wanted(s, r) for r in range(first, row + 1)))
        assert {p for p in so_far if p < valid} <= after
        assert max(after, default=0) < valid, "a position whose record is not valid after the step"
        assert len(after) <= s.slots


@pytest.mark.parametrize("policy", EXACT)
@QUICK
@given(s=small_streams())
def test_what_the_last_step_selected_never_misses(policy, s):
    _, misses = replayed(s, policy)
    for row in range(1, len(misses)):
        new = wanted(s, row) - wanted(s, row - 1)
        assert misses[row] <= len(new)
        if policy == "staging":
            assert misses[row] == len(new)


@pytest.mark.parametrize("policy", sorted(set(EXACT) - {"staging"}))
@QUICK
@given(s=small_streams())
def test_a_cache_of_everything_misses_each_position_once(policy, s):
    s.tail = False
    _, misses = replayed(s, policy, slots=int(s.seq_lens[-1]) + s.slots)
    ever: set[int] = set()
    for row, length in enumerate(s.seq_lens.tolist()):
        ever |= set(range(int(s.seq_lens[row - 1]) - 1, length - 1)) if row else set()  # what was generated here
        assert misses[row] == len(wanted(s, row) - ever)
        ever |= wanted(s, row)


@pytest.mark.parametrize("policy", POLICIES)
@QUICK
@given(s=small_streams(max_tokens=3), data=st.data())
def test_blocks_make_no_difference(policy, s, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(s.positions)), max_size=4)))
    edges = [0, *cuts, len(s.positions)]
    blocks = [(s.positions[a:b], s.seq_lens[a:b]) for a, b in itertools.pairwise(edges)]
    config = ReplayConfig(policy, s.slots, seed=5, tail=s.tail, tokens=s.tokens)
    for got, want in zip(replay_stream(blocks, [config])[0], replayed(s, policy, seed=5), strict=True):
        assert got.tolist() == want.tolist()


@pytest.mark.parametrize("policy", sorted(set(EXACT) - {"random"}))
@QUICK
@given(s=small_streams(), seed=st.integers(0, 2**31))
def test_padding_and_duplicates_make_no_difference(policy, s, seed):
    before = replayed(s, policy, slots=4 * s.slots)
    more = np.random.default_rng(seed).permuted(np.concatenate([s.positions, np.full_like(s.positions, -1)], 1), axis=1)
    if policy == "lru_plain":  # where the last of the duplicates counts
        more = s.positions
    s.positions = np.concatenate([s.positions, more], axis=1)
    for got, want in zip(replayed(s, policy, slots=4 * s.slots), before, strict=True):
        assert got.tolist() == want.tolist()


@pytest.mark.parametrize("slots", [8, 12, 24])
def test_random_takes_every_candidate_as_often(slots):
    """One miss against a full cache with 7 pinned: each of the others must leave equally often (chi-square)."""
    held = np.arange(slots, dtype=np.int32)
    lengths = np.array([1000], np.int32)
    counts = np.zeros(slots)
    rounds = 150 * (slots - 7)
    for seed in range(rounds):
        lane = Lane(ReplayConfig("random", slots, seed=seed, tail=False))
        for p in range(0, slots, 8):
            row = np.full(8, -1, np.int32)
            row[: len(held[p : p + 8])] = held[p : p + 8]
            lane.feed(row[None], lengths)
        lane.feed(np.array([[*range(7), 500]], np.int32), lengths)
        counts[list(set(range(slots)) - lane.contents())] += 1
    assert counts[:7].sum() == 0 and counts.sum() == rounds
    others = counts[7:]
    if len(others) > 1:
        degrees = len(others) - 1
        chi = ((others - 150) ** 2 / 150).sum()
        assert chi < degrees + 4 * np.sqrt(2 * degrees)


def test_random_depends_on_the_seed_and_the_lane():
    s = make(3, length=300, k=16, slots=24, steps=40)
    results = {
        tuple(Lane(ReplayConfig("random", 24, seed=seed), lane).feed(s.positions, s.seq_lens)[1].tolist())
        for seed, lane in [(0, 0), (1, 0), (0, 1)]
    }
    assert len(results) == 3
