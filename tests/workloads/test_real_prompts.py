"""ShareGPT and LongBench-v2 files: the text as it is, lengths by an independent tokenizer, bad items named."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from harness.schema import WorkloadConfig, WorkloadKind
from workloads import make_source
from workloads.conversations import Conversations


def human(text):
    return {"from": "human", "value": text}


def gpt(text):
    return {"from": "gpt", "value": text}


def source(kind, path, tokenizer_file, *, limit_in=200, limit_out=60):
    limits = {"input_len": limit_in, "output_len": limit_out, "max_input_len": limit_in}
    if kind is WorkloadKind.sharegpt:
        limits["max_output_len"] = limit_out
    workload = WorkloadConfig(kind=kind, name="w", files=[str(path)], **limits)
    return make_source(workload, vocab_size=600, tokenizer_file=tokenizer_file)


def draw(src, count, concurrency=4, repeat=0, phase="measured"):
    return src.prompts(count, concurrency=concurrency, repeat=repeat, phase=phase)


@pytest.fixture
def judge(tokenizer_file):
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    return tokenizer


@pytest.fixture
def shared(tmp_path, words):
    items = [{"id": str(i), "conversations": [human(words(i, 5)), gpt(words(100 + i, 3))]} for i in range(30)]
    items += [{"conversations": [human("no answer")]}, {"conversations": []}]
    items += [{"conversations": [gpt("hello"), human(words(40, 4)), gpt(words(41, 2)), human("more?")]}]
    items += [{"conversations": [human(words(50, 900)), gpt("short")]}, {"conversations": [human(" "), gpt("x")]}]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(items))
    return path


def test_first_questions_with_the_length_of_their_answers(shared, tokenizer_file, judge):
    prompts = draw(source(WorkloadKind.sharegpt, shared, tokenizer_file), 31)
    pairs = {}
    for item in json.loads(shared.read_text()):
        turns = [t for t in item["conversations"] if t["value"] != "hello"]
        if len(turns) > 1:
            pairs[turns[0]["value"]] = turns[1]["value"]
    for prompt in prompts:
        assert prompt.token_ids == judge.encode(prompt.text).ids
        assert prompt.output_len == len(judge.encode(pairs[prompt.text]).ids)
    assert len({p.sha for p in prompts}) == 31  # 30 and the one that began with a greeting
    assert prompts[:4] == draw(source(WorkloadKind.sharegpt, shared, tokenizer_file), 4)
    assert [p.sha for p in prompts] != [
        p.sha for p in draw(source(WorkloadKind.sharegpt, shared, tokenizer_file), 31, 8)
    ]
    with pytest.raises(ValueError, match=r"of 32 conversations 31 are different and within 200 and 60 tokens, not 32"):
        draw(source(WorkloadKind.sharegpt, shared, tokenizer_file), 32)


def test_without_a_tokenizer_prompts_are_text(shared):
    workload = WorkloadConfig(kind=WorkloadKind.sharegpt, name="w", input_len=1, output_len=9, files=[str(shared)])
    prompts = draw(Conversations(workload, encoder=None), 32)
    assert {(p.input_len, p.output_len, len(p.token_ids)) for p in prompts} == {(None, 9, 0)}
    assert len({p.sha for p in prompts}) == len({p.text for p in prompts}) == 32


@pytest.fixture
def bench(tmp_path, words):
    items = []
    for i, size in enumerate((20, 60, 3000)):
        item = {"_id": i, "context": words(i, size), "question": words(10 + i, 6)}
        items.append(item | {f"choice_{c}": words(ord(c) + i, 2) for c in "ABCD"})
    path = tmp_path / "longbench.json"
    path.write_text(json.dumps(items))
    return path


def test_questions_stay_whole_and_long_contexts_lose_their_middle(bench, tokenizer_file, judge):
    items = json.loads(bench.read_text())
    prompts = draw(source(WorkloadKind.longbench_v2, bench, tokenizer_file, limit_in=400, limit_out=5), 3)
    for prompt in prompts:
        assert prompt.text == judge.decode(prompt.token_ids, skip_special_tokens=False)
        assert len(prompt.token_ids) == prompt.input_len <= 400
        assert prompt.output_len == 5
        (item,) = [item for item in items if item["question"] in prompt.text]
        assert all(item[f"choice_{letter}"] in prompt.text for letter in "ABCD")
        assert prompt.text.index("(A)") < prompt.text.index("(D)")
        context = item["context"]
        if len(context) < 1000:
            assert context in prompt.text
        else:
            assert prompt.input_len == 400
            assert context[:100] in prompt.text and context[-100:] in prompt.text


def test_a_megabyte_of_context_is_not_tokenised_whole(tmp_path, words, bench, tokenizer_file):
    item = json.loads(bench.read_text())[0] | {"context": words(5, 200_000)}
    bench.write_text(json.dumps([item]))
    (prompt,) = draw(source(WorkloadKind.longbench_v2, bench, tokenizer_file, limit_in=300), 1)
    assert prompt.input_len == 300
    assert item["context"][:60] in prompt.text and item["context"][-60:] in prompt.text


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (WorkloadKind.sharegpt, '[{"conversations": []}, 3]', "conversation 2: has no list of `conversations`"),
        (WorkloadKind.sharegpt, '[{"conversations": [{"from": "human"}]}]', "conversation 1: a turn lacks the texts"),
        (WorkloadKind.sharegpt, '[\n{"conversations": [}]', "line 2: not JSON"),
        (WorkloadKind.sharegpt, '{"conversations": []}\n{"a"', "line 2: not JSON"),
        (WorkloadKind.longbench_v2, '[{"context": "x", "question": 3}]', "question 1: has no text `question`"),
        (WorkloadKind.longbench_v2, "[7]", "question 1: has no text `context`"),
    ],
)
def test_a_malformed_item_is_named(tmp_path, tokenizer_file, kind, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        source(kind, path, tokenizer_file)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
