"""Tokenizers on a small byte-level vocabulary and, marked `model`, against transformers on SmolLM2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from harness.engine.tokenizer import ByteTokenizer, FileTokenizer, _WindowStream, load_tokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
EOS = "<eos>"


def make_folder(folder: Path, **files: Any) -> Path:
    """A folder with a byte-level tokenizer: 256 bytes, two merges, a control token that also starts prompts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "ab", "Ġc"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("Ġ", "c")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(EOS, normalized=False)])
    backend.post_processor = processors.TemplateProcessing(single=f"{EOS} $A", special_tokens=[(EOS, 258)])
    backend.enable_truncation(4)
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    template = "{{ eos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    config = {"eos_token": {"content": EOS}, "chat_template": template}
    return FileTokenizer(make_folder(tmp_path_factory.mktemp("tok"), tokenizer_config=config))


def streamed(tokenizer: Any, ids: list[int]) -> str:
    stream = tokenizer.stream()
    return "".join([stream.push(i) for i in ids]) + stream.flush()


@given(TEXT)
def test_file_tokenizer_gives_text_back(small: FileTokenizer, text: str) -> None:
    ids = small.encode(text)  # the file's own truncation to 4 tokens is switched off
    assert ids[0] == 258
    assert small.decode(ids) == text.replace(EOS, "")
    assert streamed(small, ids) == small.decode(ids)


@given(st.lists(st.integers(0, 258), max_size=60))
@settings(max_examples=300)
def test_any_ids_stream_to_what_they_decode_to(small: FileTokenizer, ids: list[int]) -> None:
    assert streamed(small, ids) == small.decode(ids)


# Continuation and lead bytes mixed: the hard case for a window.
@given(st.lists(st.sampled_from([*"é€😀".encode(), 0x41, 0xFF]), max_size=40))
@settings(max_examples=300)
def test_broken_utf8_streams_to_what_it_decodes_to(small: FileTokenizer, data: list[int]) -> None:
    letter = {byte: small._backend.token_to_id(char) for char, byte in _byte_letters().items()}
    ids = [letter[byte] for byte in data]
    assert streamed(small, ids) == bytes(data).decode("utf-8", "replace")
    assert streamed(ByteTokenizer(256), data) == bytes(data).decode("utf-8", "replace")


# Some vocabularies have tokens that end one character and begin the next.
CHUNKS = [bytes([byte]) for byte in "é€😀".encode()] + [
    b"a",
    b"\xff",
    b"\xac\xe2",
    b"\xa9\xf0\x9f",
    b"\x80\xe2\x82",
]


@given(st.lists(st.sampled_from(CHUNKS), max_size=40))
@example([b"\xff", b"\xff", b"\xff", b"\xe2", b"\x82", b"\xac\xe2", b"\x82", b"\xac"])
@settings(max_examples=300)
def test_tokens_across_characters_stream_to_what_they_decode_to(chunks: list[bytes]) -> None:
    stream = _WindowStream(lambda ids: b"".join(chunks[i] for i in ids).decode("utf-8", "replace"))
    text = "".join([stream.push(i) for i in range(len(chunks))]) + stream.flush()
    assert text == b"".join(chunks).decode("utf-8", "replace")


def _byte_letters() -> dict[str, int]:
    """The byte that each letter of the byte-level alphabet stands for."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(rest)}


def test_a_character_comes_out_whole(small: FileTokenizer) -> None:
    stream = small.stream()
    assert [stream.push(i) for i in small.encode("a€b")] == ["", "a", "", "", "€", "b"]
    assert stream.flush() == ""
    stream = small.stream()
    assert [stream.push(i) for i in small.encode("a€")[:-1]] == ["", "a", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


@pytest.mark.parametrize("repeated", ["control", "broken"])
def test_a_repeated_id_does_not_grow_the_window(small: FileTokenizer, repeated: str) -> None:
    token_id = 258 if repeated == "control" else small._backend.token_to_id(chr(0xFF))
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return small.decode(ids)

    stream = _WindowStream(decode)
    ids = [*small.encode("hi"), *[token_id] * 500, *small.encode("€")]
    assert "".join([stream.push(i) for i in ids]) + stream.flush() == small.decode(ids)
    assert longest <= 16


def test_chat_uses_the_template_and_adds_nothing(small: FileTokenizer) -> None:
    ids = small.chat([{"role": "user", "content": "ab"}])
    assert ids[0] == 258
    assert ids.count(258) == 1  # not the prompt's own start token on top
    assert small.decode(ids) == "user:ab;"
    with pytest.raises(ValueError, match="role is 'robot'"):
        small.chat([{"role": "robot", "content": "ab"}])


def test_eos_ids_come_from_the_generation_config_first(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, config={"eos_token_id": 1})
    assert FileTokenizer(folder).eos_ids == {1}
    make_folder(tmp_path, generation_config={"eos_token_id": [258, 7]})
    assert FileTokenizer(folder).eos_ids == {258, 7}


def test_the_template_file_wins_and_named_templates_have_a_default(tmp_path: Path) -> None:
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "ab"}]
    folder = make_folder(tmp_path, tokenizer_config={"chat_template": named})
    user = [{"role": "user", "content": "x"}]
    tokenizer = FileTokenizer(folder)
    assert tokenizer.decode(tokenizer.chat(user)) == "ab"
    (folder / "chat_template.jinja").write_text("cd")
    tokenizer = FileTokenizer(folder)
    assert tokenizer.decode(tokenizer.chat(user)) == "cd"


def test_no_template_and_no_tokenizer_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        FileTokenizer(tmp_path)
    with pytest.raises(ValueError, match="has no chat template; use /v1/completions"):
        FileTokenizer(make_folder(tmp_path)).chat([{"role": "user", "content": "x"}])


def test_half_a_surrogate_is_refused(small: FileTokenizer) -> None:
    for tokenizer in (small, ByteTokenizer(256)):
        with pytest.raises(ValueError, match="lone surrogate at character 2"):
            tokenizer.encode("ab\ud83d")
        with pytest.raises(ValueError, match="lone surrogate"):
            tokenizer.chat([{"role": "user", "content": "\udc00"}])


@given(TEXT)
def test_byte_tokenizer_gives_text_back(text: str) -> None:
    tokenizer = ByteTokenizer(1024)
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == streamed(tokenizer, ids) == text


def test_byte_tokenizer_shows_other_ids() -> None:
    tokenizer = ByteTokenizer(1024)
    assert tokenizer.decode([104, 105, 1023, 0xE2, 0x82, 300, 33]) == "hi<|1023|>\ufffd<|300|>!"
    stream = tokenizer.stream()
    assert [stream.push(i) for i in (0xE2, 0x82, 300)] == ["", "", "\ufffd<|300|>"]
    assert tokenizer.eos_ids == frozenset()
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert tokenizer.decode(tokenizer.chat(chat)) == "system: s\nuser: u\nassistant:"
    with pytest.raises(ValueError, match="vocab_size=255 is too small"):
        ByteTokenizer(255)


def test_load_tokenizer_chooses_and_checks(tmp_path: Path) -> None:
    assert isinstance(load_tokenizer(None, 512), ByteTokenizer)
    folder = make_folder(tmp_path)
    assert load_tokenizer(folder, 259).vocab_size == 259
    with pytest.raises(ValueError, match="has 259 tokens but the model's vocab_size is 258"):
        load_tokenizer(folder, 258)


def test_transformers_is_not_imported(tmp_path: Path) -> None:
    make_folder(tmp_path, tokenizer_config={"chat_template": "ab"})
    code = (
        "import sys; from pathlib import Path; from harness.engine.tokenizer import load_tokenizer;"
        "load_tokenizer(Path(sys.argv[1]), 999).chat([{'role': 'user', 'content': 'x'}]);"
        "print({'transformers', 'torch'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


@pytest.mark.model
def test_smollm2_against_transformers() -> None:
    from transformers import AutoTokenizer

    from harness import fetch

    folder = fetch.fetch("smollm2_135m")
    ours, theirs = load_tokenizer(folder, 49152), AutoTokenizer.from_pretrained(folder)
    assert (ours.vocab_size, ours.eos_ids) == (len(theirs), {theirs.eos_token_id})
    sources = Path(json.__file__).read_text(encoding="utf-8")
    for text in (
        "Hello  world 2024\n\n\t12 + 30",
        "naïve €5 😀👩‍👩‍👧 日本語",
        "<|im_start|>x<|im_end|>",
        sources,
        "",
    ):
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert ours.decode(ids) == streamed(ours, ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.encode("1234") == [ours.encode(digit)[0] for digit in "1234"]  # as the model was trained

    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 < 3 & 'é'?"}
    answer = {"role": "assistant", "content": "Yes <|im_end|>."}
    for chat in ([user], [system, user], [user, answer, user]):
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert ours.chat(chat) == expected
