"""Random prompts: exact, deterministic, and never the same twice."""

from __future__ import annotations

import pytest

from harness.schema import WorkloadConfig, WorkloadKind
from workloads import make_source


def source(vocab_size=5000, **overrides):
    defaults = {"kind": WorkloadKind.random_ids, "name": "w", "input_len": 32, "output_len": 7}
    return make_source(WorkloadConfig(**(defaults | overrides)), vocab_size=vocab_size, tokenizer_file=None)


def draw(src, count=20, concurrency=4, repeat=0, phase="measured"):
    return src.prompts(count, concurrency=concurrency, repeat=repeat, phase=phase)


def test_lengths_and_range():
    for prompt in draw(source()):
        assert len(prompt.token_ids) == prompt.input_len == 32
        assert prompt.output_len == 7
        assert all(16 <= i < 5000 for i in prompt.token_ids)
        assert prompt.text is None


def test_a_small_vocabulary_is_used_whole():
    ids = {i for prompt in draw(source(vocab_size=64), count=100) for i in prompt.token_ids}
    assert ids == set(range(64))


def test_deterministic_and_a_smaller_count_is_a_prefix():
    assert draw(source()) == draw(source())
    assert draw(source(), count=5) == draw(source())[:5]


def test_no_prompt_twice_in_or_between_points():
    prompts = []
    for concurrency in (1, 2, 4, 11):
        for repeat in (0, 1):
            for phase in ("measured", "warmup"):
                prompts += draw(source(), 30, concurrency, repeat, phase)
    for other in (source(seed=1), source(input_len=31)):
        prompts += draw(other, 30)
    assert len({p.sha for p in prompts}) == len(prompts)
    assert len({tuple(p.token_ids[:8]) for p in prompts}) == len(prompts)  # no shared beginnings either


def test_distinct_even_when_the_space_is_nearly_used_up():
    prompts = draw(source(vocab_size=4, input_len=2), count=8)
    assert len({tuple(p.token_ids) for p in prompts}) == 8


def test_too_many_prompts_for_the_space():
    with pytest.raises(ValueError, match=r"workload\.input_len"):
        draw(source(vocab_size=4, input_len=2), count=9)


@pytest.mark.parametrize("key", ["input_len", "output_len"])
def test_lengths_below_one_are_refused(key):
    with pytest.raises(ValueError, match=rf"workload\.{key} is 0"):
        source(**{key: 0})
