"""Small text files of made-up words and a tokenizer trained on them."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def make_words(seed, count):
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdeéxyz→", k=rng.randint(2, 7))) for _ in range(count))


@pytest.fixture(scope="session")
def words():
    return make_words


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for i in range(4):
        (folder / f"{i}.txt").write_text(make_words(i, 800), encoding="utf-8")
    (folder / "latin.txt").write_bytes("plain, then é".encode("latin-1") * 400)
    return folder


@pytest.fixture(scope="session")
def tokenizer_file(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train([str(texts / f"{i}.txt") for i in range(4)], trainer)
    tokenizer.enable_truncation(8)  # as some published files do: must not cut our prompts
    path = texts / "tokenizer.json"
    tokenizer.save(str(path))
    return path
