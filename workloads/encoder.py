"""Text to token ids with a model's own `tokenizer.json`."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Encoding, Tokenizer


class Encoder:
    """A tokenizer that neither cuts nor pads nor adds special tokens, held to one vocabulary."""

    def __init__(self, tokenizer_file: Path, *, vocab_size: int | None) -> None:
        if not tokenizer_file.is_file():
            raise ValueError(f"tokenizer file {tokenizer_file} does not exist; fetch the model first")
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # the library raises this very type for any file it cannot read
            raise ValueError(f"{tokenizer_file}: is no tokenizer.json ({str(error).splitlines()[0]})") from error
        self._tokenizer.no_truncation()  # a tokenizer.json may carry both settings
        self._tokenizer.no_padding()
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> Encoding:
        """Ids and their offsets in `text` (characters)."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def ids(self, text: str) -> list[int]:
        """Token ids. Raises ValueError for one beyond the model's vocabulary."""
        return self.checked(self.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def checked(self, ids: list[int]) -> list[int]:
        """`ids`, all of them in the model's vocabulary. Raises ValueError."""
        if self._vocab_size is not None and ids and max(ids) >= self._vocab_size:
            raise ValueError(
                f"the tokenizer gives id {max(ids)}, the model's vocab_size is {self._vocab_size}; "
                "use the tokenizer that belongs to the model"
            )
        return ids
