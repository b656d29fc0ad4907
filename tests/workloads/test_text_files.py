"""Prompts cut from files: exact lengths, real text, distinct windows, clear refusals."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from harness.schema import WorkloadConfig, WorkloadKind
from workloads import make_source
from workloads.corpus import Corpus, find_files

VOCAB = 600


@pytest.fixture
def source(texts, tokenizer_file):
    def make(vocab_size=VOCAB, **overrides):
        defaults = {
            "kind": WorkloadKind.text_files,
            "name": "w",
            "input_len": 50,
            "output_len": 7,
            "files": [str(texts / "*.txt")],
        }
        workload = WorkloadConfig(**(defaults | overrides))
        return make_source(workload, vocab_size=vocab_size, tokenizer_file=tokenizer_file)

    return make


def draw(src, count=20, concurrency=4, repeat=0, phase="measured"):
    return src.prompts(count, concurrency=concurrency, repeat=repeat, phase=phase)


@pytest.mark.parametrize("input_len", [1, 50, 3000])
def test_exact_lengths_by_an_independent_tokenizer(source, texts, tokenizer_file, input_len):
    judge = Tokenizer.from_file(str(tokenizer_file))
    judge.no_truncation()
    everything = "".join((texts / f"{i}.txt").read_text(encoding="utf-8") for i in range(4))
    for prompt in draw(source(input_len=input_len), count=5):
        assert len(prompt.token_ids) == prompt.input_len == input_len
        assert judge.encode(prompt.text).ids == prompt.token_ids
        assert judge.decode(prompt.token_ids) == prompt.text
        assert prompt.text in everything


def test_deterministic_and_a_smaller_count_is_a_prefix(source):
    assert draw(source()) == draw(source())
    assert draw(source(), count=5) == draw(source())[:5]


def test_points_and_phases_differ(source):
    prompts = []
    for concurrency, repeat, phase in [
        (1, 0, "measured"),
        (2, 0, "measured"),
        (1, 1, "measured"),
        (1, 0, "warmup"),
    ]:
        prompts += draw(source(), 10, concurrency, repeat, phase)
    assert len({p.sha for p in prompts}) == 40


def test_a_short_text_gives_every_window_it_has_and_no_more(source, words, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text(words(9, 40), encoding="utf-8")
    src = source(files=[str(file)], input_len=20)
    with pytest.raises(ValueError, match=r"short\.txt.*only (\d+) of 5000 .*add longer UTF-8 files") as error:
        draw(src, count=5000)
    possible = int(str(error.value).split("only ")[1].split()[0])
    assert possible > 20
    assert len({p.sha for p in draw(src, count=possible)}) == possible


@pytest.mark.parametrize("text", ["", "one word", "ab " * 5000])
def test_empty_tiny_and_repetitive_texts_are_refused(source, tmp_path, text):
    file = tmp_path / "poor.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"of 20 different prompts of 50 tokens"):
        draw(source(files=[str(file)]))


def test_only_files_that_are_not_utf8(source, texts):
    with pytest.raises(ValueError, match="only 0 of 20"):
        draw(source(files=[str(texts / "latin.txt")]))


def test_a_glob_without_files_is_named(source):
    with pytest.raises(ValueError, match=r"'/nowhere/\*\.txt' matches no file"):
        source(files=["/nowhere/*.txt"])


def test_no_tokenizer(texts):
    workload = WorkloadConfig(kind=WorkloadKind.text_files, name="w", input_len=5, output_len=5)
    with pytest.raises(ValueError, match="needs a model with a tokenizer"):
        make_source(workload, vocab_size=VOCAB, tokenizer_file=None)
    with pytest.raises(ValueError, match="does not exist"):
        make_source(workload, vocab_size=VOCAB, tokenizer_file=texts / "none.json")


def test_a_tokenizer_of_another_model(source):
    with pytest.raises(ValueError, match="vocab_size is 100"):
        draw(source(vocab_size=100))


def test_the_default_is_the_standard_library(source):
    src = source(files=[], input_len=200)
    for prompt in draw(src, count=3):
        assert len(prompt.token_ids) == 200
    names = {file.name for file in find_files([])}
    assert {"argparse.py", "tempfile.py"} <= names
    assert not any("site-packages" in file.parts for file in find_files([]))


def test_corpus_reads_whole_characters_across_files_and_skips_others(tmp_path):
    for name, data in {"a": "ab→".encode(), "b": b"\xff\xfe", "c": "éz".encode()}.items():
        (tmp_path / name).write_bytes(data)
    corpus = Corpus([tmp_path / name for name in "abc"])
    assert corpus.size == 10
    assert corpus.read(0, 100) == "ab→éz"
    assert corpus.read(3, 100) == "éz"  # the middle of the arrow
    assert corpus.read(0, 4) == "ab"  # half an arrow is left out, and nothing follows it
    assert corpus.read(1, 4) == "b→"
    assert corpus.read(5, 100) is None
    assert corpus.read(7, 1) == ""
