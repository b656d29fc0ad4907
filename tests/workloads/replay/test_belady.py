"""The offline optimum: never worse than any policy, and equal to a search over all choices on tiny streams."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import make, small_streams

from workloads.replay import POLICIES, ReplayConfig, replay_stream


def least_misses(rows, seq_lens, slots, tail, tokens):
    """The fewest misses of any choice of victims, by trying them all."""
    steps = [range(i, min(i + tokens, len(rows))) for i in range(0, len(rows), tokens)]

    @functools.cache
    def best(step, held):
        if step == len(steps):
            return 0
        first = steps[step][0]
        before = seq_lens[steps[step - 1][0]] if step else (seq_lens[0] - 1 if tail else seq_lens[0])
        held |= {p for p in range(before - 1, seq_lens[first] - 1) if 0 <= p < slots}
        chosen = {p for r in steps[step] for p in rows[r] if 0 <= p < seq_lens[r] - 1}
        others = held - chosen
        keep = min(len(others), slots - len(chosen))
        valid = seq_lens[first] if tokens > 1 else 10**9
        after = {p for p in chosen if p < valid}
        choices = itertools.combinations(sorted(others), keep)
        return len(chosen - held) + min(best(step + 1, frozenset(after | set(kept))) for kept in choices)

    old = seq_lens[0] - 2
    return best(0, frozenset(range(max(old - slots, 0), old)) if tail else frozenset())


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**31),
    k=st.integers(1, 3),
    spare=st.integers(0, 3),
    length=st.integers(1, 9),
    steps=st.integers(1, 8),
    tokens=st.integers(1, 2),
    tail=st.booleans(),
)
def test_belady_equals_a_search_over_all_choices(seed, k, spare, length, steps, tokens, tail):
    s = make(seed, length=length, k=k, slots=k * tokens + spare, steps=steps, tokens=tokens, tail=tail)
    config = ReplayConfig("belady", s.slots, tail=tail, tokens=tokens)
    _, misses = replay_stream([(s.positions, s.seq_lens)], [config])[0]
    assert misses.sum() == least_misses(*s.lists, s.slots, tail, tokens)


@settings(max_examples=300)
@given(s=small_streams(max_tokens=3))
def test_belady_selects_the_same_and_misses_no_more(s):
    results = _all(s)
    for policy, (selected, misses) in results.items():
        assert selected.tolist() == results["belady"][0].tolist(), policy
        assert results["belady"][1].sum() <= misses.sum(), policy


def test_belady_never_loses_on_thousands_of_streams():
    losses, best_other = [], 0
    g = np.random.default_rng(11)
    for seed in range(2000):
        k, tokens = int(g.integers(1, 12)), int(g.integers(1, 4))
        slots = k * tokens + int(g.integers(0, 30))
        s = make(seed, length=int(g.integers(1, 80)), k=k, slots=slots, steps=20, tokens=tokens, tail=seed % 2 == 0)
        totals = {policy: int(misses.sum()) for policy, (_, misses) in _all(s).items()}
        optimum = totals.pop("belady")
        losses += [(seed, policy) for policy, total in totals.items() if total < optimum]
        best_other += min(totals.values()) > optimum
    assert not losses
    assert best_other > 500, "on most streams the optimum should be out of the online policies' reach"


def _all(s):
    configs = [ReplayConfig(policy, s.slots, tail=s.tail, tokens=s.tokens) for policy in POLICIES]
    return dict(zip(POLICIES, replay_stream([(s.positions, s.seq_lens)], configs), strict=True))


@pytest.mark.parametrize("tail", [True, False])
def test_a_worked_example(tail):
    """Three slots: at step 3, 1 is kept for step 4 and 2 leaves, although 2 is the more recent."""
    rows = np.array([[1], [2], [3], [4], [1]], np.int32)
    lens = np.full(5, 100, np.int32)
    config = ReplayConfig("belady", 3, tail=tail)
    (selected, misses) = replay_stream([(rows, lens)], [config])[0]
    assert selected.tolist() == [1] * 5
    assert misses.tolist() == [1, 1, 1, 1, 0]
