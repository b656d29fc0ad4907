"""Driving the replay: threads, refusals, MTP from an empty buffer."""

import numpy as np
import pytest
from streams import make

from workloads.replay import POLICIES, Lane, ReplayConfig, replay, replay_stream


def blocks_of(s, size):
    return [(s.positions[i : i + size], s.seq_lens[i : i + size]) for i in range(0, len(s.positions), size)]


def test_workers_make_no_difference_and_results_keep_the_order_of_the_streams():
    made = [make(seed, length=400, k=12, slots=30, steps=20 + 7 * seed) for seed in range(9)]
    configs = [ReplayConfig(policy, 30, seed=2) for policy in POLICIES]
    results = [replay([blocks_of(s, 8) for s in made], configs, workers=workers) for workers in (1, 2, 5)]
    for one, *others in zip(*results, strict=True):
        assert [len(m) for m in one.misses] == [20 + 7 * seed for seed in range(9)]
        for other in others:
            for a, b in zip(one.misses + one.selected, other.misses + other.selected, strict=True):
                assert a.tolist() == b.tolist()


def test_streams_are_taken_as_they_are_needed():
    """Whatever the number of sequences, no more of them are under way than there are workers."""
    open_now, most = set(), 0

    def stream(number):
        nonlocal most
        open_now.add(number)
        most = max(most, len(open_now))
        yield from blocks_of(make(number, length=50, k=4, slots=8, steps=6), 2)
        open_now.discard(number)

    result = replay((stream(i) for i in range(12)), [ReplayConfig("fifo", 8)], workers=2)[0]
    assert len(result.misses) == 12 and most <= 2


def test_rates_are_shares_of_the_selection():
    rows = np.array([[1, 2, 9], [1, 2, 3], [1, 1, -1]], np.int32)
    lens = np.array([10, 10, 10], np.int32)
    result = replay([[(rows, lens)], [(rows, lens)]], [ReplayConfig("fifo", 4, tail=False)])[0]
    assert result.selected[0].tolist() == [3, 3, 1]  # 9 is the newest: selected, never missed
    assert result.misses[0].tolist() == [2, 1, 0]
    assert result.per_step().tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert result.miss_rate == pytest.approx(1 / 3)


def test_an_error_in_a_stream_reaches_the_caller():
    def broken():
        yield np.array([[1, 2]], np.int32), np.array([5], np.int32)
        raise OSError("the trace ends here")

    with pytest.raises(OSError, match="the trace ends here"):
        replay([broken()], [ReplayConfig("lru", 4)])


def drifting(context, k, steps, seed):
    """The family of the synthetic calibrations at a quarter of their scale: static, slow, fast and noise."""
    g = np.random.default_rng(seed)
    static, slow, fast = (g.standard_normal(context + steps) for _ in range(3))
    rows = np.empty((steps, k), np.int32)
    for step in range(steps):
        slow = 0.89 * slow + np.sqrt(1 - 0.89**2) * g.standard_normal(len(slow))
        fast = 0.5 * fast + np.sqrt(1 - 0.5**2) * g.standard_normal(len(slow))
        score = static + 0.43 * slow + 0.27 * fast + 0.21 * g.standard_normal(len(slow))
        rows[step] = np.sort(np.argpartition(-score[: context + step + 1], k)[:k])
    return rows, np.arange(context + 1, context + 1 + steps, dtype=np.int32)


@pytest.mark.parametrize("policy", POLICIES)
def test_mtp_3_from_an_empty_buffer_reuses_more_than_half(policy):
    """AVSG section 4.4: four tokens in one buffer reuse 61.87% of their selections in the first step."""
    rows, lens = drifting(12_500, 512, 4, 1)
    config = ReplayConfig(policy, 2048, tail=False, tokens=4)
    selected, misses = replay_stream([(rows, lens)], [config])[0]
    assert misses[0] == selected[0] - (lens[0] - 1 in rows[0])  # the first token finds nothing
    reuse = 1 - misses.sum() / selected.sum()
    union = len(set(rows[rows < lens[:, None] - 1].tolist()))
    assert reuse > 0.5
    if policy not in ("avsg", "staging"):
        assert misses.sum() == union


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "mru"}, "policy=mru is none of lru, lru_plain"),
        ({"cache_slots": 0}, r"cache_slots=0 is outside \[1, 65533\]"),
        ({"cache_slots": 65_534}, "cache_slots=65534 is outside"),
        ({"tokens": 0}, "tokens=0 must be at least 1"),
        ({"parameters": {"life": 3}}, "lru has no parameter life; it has none"),
        ({"policy": "slru", "parameters": {"protected_percent": 101}}, r"protected_percent=101 is outside \[0, 100\]"),
    ],
)
def test_refused_configs(change, message):
    with pytest.raises(ValueError, match=message):
        ReplayConfig(**{"policy": "lru", "cache_slots": 4, **change})


@pytest.mark.parametrize(
    ("positions", "lengths", "message"),
    [
        (np.zeros((1, 5), np.int32), [9], "k=5 selected positions do not fit cache_slots=4"),
        (np.zeros((1, 2), np.int64), [9], "positions is int64"),
        (np.zeros(2, np.int32), [9], "needs int32 with 2 dimensions"),
        (np.zeros((2, 2), np.int32), [9], "positions has 2 rows, seq_lens 1"),
        (np.array([[3, 9]], np.int32), [9], r"positions\[0, 1\] = 9 is not below seq_len 9"),
        (np.full((2, 2), -1, np.int32), [9, 8], "must not fall"),
        (np.full((1, 2), -1, np.int32), [0], "must be at least 1"),
    ],
)
def test_refused_blocks(positions, lengths, message):
    lane = Lane(ReplayConfig("lru", 4))
    with pytest.raises(ValueError, match=message):
        lane.feed(positions, np.array(lengths, np.int32))
    good = np.array([[1, 2]], np.int32), np.array([9], np.int32)
    for got, want in zip(lane.feed(*good), Lane(ReplayConfig("lru", 4)).feed(*good), strict=True):
        assert got.tolist() == want.tolist()  # nothing was changed


def test_a_fall_between_blocks_and_incomplete_steps_are_refused():
    lane = Lane(ReplayConfig("fifo", 8, tokens=2))
    lane.feed(np.full((3, 2), -1, np.int32), np.array([5, 6, 6], np.int32))
    with pytest.raises(ValueError, match="must rise within a step"):
        lane.feed(np.full((1, 2), -1, np.int32), np.array([6], np.int32))
    with pytest.raises(ValueError, match="3 rows are not whole steps of 2 tokens"):
        lane.finish()


def test_a_read_only_block_is_taken():
    rows, lens = np.array([[1, 2]], np.int32), np.array([9], np.int32)
    rows.flags.writeable = lens.flags.writeable = False
    assert Lane(ReplayConfig("fifo", 4, tail=False)).feed(rows, lens)[1].tolist() == [2]
