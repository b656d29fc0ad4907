"""Text to token ids and back for the native engine's server, without transformers (seconds to import).

`FileTokenizer` reads a Hugging Face folder; `ByteTokenizer` serves the models of random weights.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from harness.engine.chat_template import check_messages, compile_chat_template

_SURROGATE = re.compile("[\ud800-\udfff]")


class TextStream(Protocol):
    """Detokenises one generation as it grows; pushes and the flush together give `decode` of all ids."""

    def push(self, token_id: int) -> str:
        """The text this id completes; "" while a character is incomplete."""

    def flush(self) -> str:
        """What is left at the end; a character that never became complete is U+FFFD."""


class Tokenizer(Protocol):
    """What the server needs of a tokenizer."""

    vocab_size: int
    eos_ids: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt. Raises ValueError for text that is not valid Unicode."""

    def decode(self, ids: list[int]) -> str:
        """The text of generated ids, control tokens left out."""

    def stream(self) -> TextStream:
        """A fresh incremental decoder."""

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """The ids of a conversation in the model's chat format, ending where the assistant's answer begins.

        A message is `{"role", "content"}` as in the OpenAI API, its content text or a list of text parts.
        Raises ValueError, in one line, for another shape or role and for what the model's template refuses.
        """


def load_tokenizer(weights_folder: Path | None, vocab_size: int) -> Tokenizer:
    """The tokenizer of a weights folder; bytes when there is none (random weights).

    `vocab_size` is the model's. Raises ValueError when the tokenizer has ids the model does not.
    """
    if weights_folder is None:
        return ByteTokenizer(vocab_size)
    tokenizer = FileTokenizer(weights_folder)
    if tokenizer.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer in {weights_folder} has {tokenizer.vocab_size} tokens but the model's vocab_size is "
            f"{vocab_size}; they are not of the same model"
        )
    return tokenizer


class FileTokenizer:
    """`tokenizer.json` of a Hugging Face folder, with its end-of-text ids and its chat template."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Backend

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"{folder} has no tokenizer.json; give a Hugging Face folder that holds one")
        self._backend = Backend.from_file(str(file))
        self._backend.no_truncation()
        self._backend.no_padding()
        config = _read_json(folder / "tokenizer_config.json")
        self.vocab_size = self._backend.get_vocab_size()
        self.eos_ids = _eos_ids(folder)
        template = _chat_template(folder, config)
        self._template = None if template is None else compile_chat_template(template)
        self._special = _special_tokens(config)
        self._folder = folder

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`. Adds what the tokenizer adds to a prompt (a BOS for some models)."""
        return self._encode(text, special=True)

    def decode(self, ids: list[int]) -> str:
        """See `Tokenizer`."""
        return self._backend.decode(ids, skip_special_tokens=True)

    def stream(self) -> TextStream:
        """See `Tokenizer`."""
        return _WindowStream(self.decode)

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """See `Tokenizer`."""
        if self._template is None:
            raise ValueError(f"the model in {self._folder} has no chat template; use /v1/completions")
        text = self._template(messages=check_messages(messages), **self._special)
        return self._encode(text, special=False)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        # encode() would hold Python's lock, seconds for a megabyte, and every other thread would stand still
        return self._backend.encode_batch([_valid(text)], add_special_tokens=special)[0].ids


class ByteTokenizer:
    """Ids 0..255 are UTF-8 bytes; any other id reads as `<|id|>`. There is no end-of-text id."""

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 256:
            raise ValueError(f"vocab_size={vocab_size} is too small for byte tokens; use at least 256")
        self.vocab_size = vocab_size
        self.eos_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`. `<|300|>` in a text is its seven bytes, never id 300."""
        return list(_valid(text).encode("utf-8"))

    def decode(self, ids: list[int]) -> str:
        """See `Tokenizer`."""
        stream = self.stream()
        return "".join([stream.push(i) for i in ids]) + stream.flush()

    def stream(self) -> TextStream:
        """See `Tokenizer`."""
        return _ByteStream()

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """See `Tokenizer`: a `role: content` line per message, then `assistant:`."""
        lines = [f"{m['role']}: {m['content']}\n" for m in check_messages(messages)]
        return self.encode("".join(lines) + "assistant:")


class _ByteStream:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id < 256:
            return self._utf8.decode(bytes([token_id]))
        return self.flush() + f"<|{token_id}|>"

    def flush(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


class _WindowStream:
    """Decodes a short window that starts a little before the last text given out, and gives the difference.

    A window, because the text of one id can depend on its neighbours (bytes of a character, leading
    spaces). `tokenizers.DecodeStream` does this too, but cannot give out the incomplete rest at the end,
    and its window grows for as long as a model repeats a control token or U+FFFD.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []  # the window
        self._given = 0  # how many of its ids are given out,
        self._given_text = ""  # and their text

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        text, end = self._decode(self._ids), len(self._ids)
        if text == self._given_text:  # a control token: no part of any later text
            del self._ids[self._given :]
            return ""
        if text.endswith("\ufffd"):
            # Perhaps the beginning of a character, whose bytes are then in the last three ids.
            end -= 3
            if end - self._given < 4:
                return ""
            head = self._decode(self._ids[:end])
            if not text.startswith(head):
                return ""
            text = head
        return self._give(text, end)

    def flush(self) -> str:
        return self._give(self._decode(self._ids), len(self._ids))

    def _give(self, text: str, end: int) -> str:
        """Give out `text`, of the window's first `end` ids, and start the window at what was new in it."""
        new = text[len(self._given_text) :]
        self._ids = self._ids[self._given :]
        self._given = end - self._given
        self._given_text = self._decode(self._ids[: self._given])
        return new


def _valid(text: str) -> str:
    """JSON can carry half a surrogate pair, which is no character."""
    if lone := _SURROGATE.search(text):
        raise ValueError(f"the text holds a lone surrogate at character {lone.start()}; send valid Unicode")
    return text


def _eos_ids(folder: Path) -> frozenset[int]:
    """generation_config.json decides; config.json where that says nothing."""
    for name in ("generation_config.json", "config.json"):
        ids = _read_json(folder / name).get("eos_token_id")
        if ids is not None:
            return frozenset(ids) if isinstance(ids, list) else frozenset([ids])
    return frozenset()


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json (one template, or several by name)."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The tokens a template may name, such as bos_token; each is text or an object that holds it."""
    found = {key: config.get(key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
    texts = {key: token["content"] if isinstance(token, dict) else token for key, token in found.items()}
    return {key: text for key, text in texts.items() if text is not None}


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
