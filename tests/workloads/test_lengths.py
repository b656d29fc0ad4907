"""Lengths drawn from distributions and files: their moments, their bounds, and what a bad file is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from harness.schema import LengthKind, WorkloadConfig, WorkloadKind
from workloads import make_source


def source(tokenizer_file=None, **overrides):
    defaults = {"kind": WorkloadKind.random_ids, "name": "w", "input_len": 100, "output_len": 40}
    return make_source(WorkloadConfig(**(defaults | overrides)), vocab_size=5000, tokenizer_file=tokenizer_file)


def draw(src, count=400, concurrency=4, repeat=0, phase="measured"):
    return src.prompts(count, concurrency=concurrency, repeat=repeat, phase=phase)


def lengths(prompts):
    assert all(len(p.token_ids) == p.input_len for p in prompts)
    return np.array([p.input_len for p in prompts]), np.array([p.output_len for p in prompts])


UNIFORM = {"lengths": LengthKind.uniform, "input_spread": 0.5, "output_spread": 0.25}
LOGNORMAL = {"lengths": LengthKind.lognormal, "input_spread": 0.8, "max_input_len": 2000, "max_output_len": 40}


def test_uniform_fills_its_range():
    asked, answered = lengths(draw(source(**UNIFORM), 2000))
    assert (asked.min(), asked.max(), answered.min(), answered.max()) == (50, 150, 30, 50)
    assert asked.mean() == pytest.approx(100, abs=3)
    assert abs(np.corrcoef(asked, answered)[0, 1]) < 0.1
    assert source(**UNIFORM)._workload.longest == (150, 50)


def test_lognormal_has_the_mean_and_spread_it_was_given_and_stays_below_its_limit():
    asked, answered = lengths(draw(source(**LOGNORMAL), 4000))
    assert asked.mean() == pytest.approx(100, rel=0.05)
    assert asked.std() == pytest.approx(80, rel=0.15)
    assert np.log(asked).std() == pytest.approx(np.sqrt(np.log(1.64)), rel=0.05)
    assert set(answered) == {40}
    cut, _ = lengths(draw(source(**LOGNORMAL | {"max_input_len": 120})))
    assert cut.max() <= 120


@pytest.mark.parametrize("overrides", [UNIFORM, LOGNORMAL])
def test_a_smaller_count_is_a_prefix_and_points_differ(overrides):
    src = source(**overrides)
    assert draw(src, 7) == draw(src, 30)[:7]
    shas = {p.sha for c in (1, 2) for r in (0, 1) for p in draw(src, 50, c, r)}
    assert len(shas) == 200


FILES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,30,3\n2023-11-16 18:17:04.03,50,5\n",
    "ours.csv": "input_len,output_len\n30,3\n50,5\n",
    "mooncake.jsonl": '{"input_length": 30, "output_length": 3, "hash_ids": [1]}\n\n'
    '{"input_length": 50, "output_length": 5}\n',
    "ours.jsonl": '{"input_len": 30, "output_len": 3}\n{"input_len": 50, "output_len": 5}\n',
}


def empirical(path, **overrides):
    limits = {"input_len": 60, "output_len": 9, "max_input_len": 60, "max_output_len": 9}
    return source(lengths=LengthKind.empirical, length_file=str(path), **(limits | overrides))


@pytest.mark.parametrize("name", FILES)
def test_pairs_of_a_file_stay_together_in_their_shares(tmp_path, name):
    (tmp_path / name).write_text(FILES[name])
    asked, answered = lengths(draw(empirical(tmp_path / name)))
    assert set(zip(asked.tolist(), answered.tolist(), strict=True)) == {(30, 3), (50, 5)}
    assert 120 < (asked == 30).sum() < 280
    doubled, _ = lengths(draw(empirical(tmp_path / name, length_scale=2.0, max_input_len=60, max_output_len=9)))
    assert set(doubled.tolist()) == {60}  # 100 is above the limit


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "input_len,output_len\n3,4\n3,x\n", r"a\.csv line 3: output_len is 'x', which is no whole number"),
        ("a.csv", "input_len,output_len\n3\n", r"a\.csv line 2: output_len is None"),
        ("a.csv", "length\n3\n", r"a\.csv line 1: has no pair of lengths; it needs input_len and output_len"),
        ("a.jsonl", '{"input_len": 0, "output_len": 3}', r"a\.jsonl line 1: input_len is 0, .* of at least 1"),
        ("a.jsonl", '{"input_len": 3, "output_len": true}', r"line 1: output_len is True"),
        ("a.jsonl", '{"input_len": 3, "output_len": 3}\n{"input', r"a\.jsonl line 2: not JSON"),
        ("a.jsonl", "[]", r"line 1: a JSON object was expected, not list"),
        ("a.jsonl", '{"input_len": 100, "output_len": 3}', r"none of its 1 pairs .* within 60 and 9 tokens"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        empirical(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.csv: No such file"):
        empirical(tmp_path / "none.csv")


def test_real_text_takes_lengths_too(texts, tokenizer_file):
    src = source(
        tokenizer_file, kind=WorkloadKind.text_files, files=[str(texts / "[0-3].txt")], input_len=40, **UNIFORM
    )
    asked, _ = lengths(draw(src, 60))
    assert 20 <= asked.min() < 30 and 50 < asked.max() <= 60
    assert draw(src, 7) == draw(src, 60)[:7]


def test_lines_of_a_long_file_are_numbered(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"input_len": 1, "output_len": 1})] * 70
    lines[63] = "{"
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="line 64"):
        empirical(path)
