"""Prompts of one exact token length, cut from real files at random places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from harness.schema import WorkloadConfig
from workloads.corpus import Corpus, find_files
from workloads.prompt import Phase, Prompt, make_prompt, point_rng

_BYTES_PER_TOKEN = 6  # a first guess at the stretch to tokenise; too little text is doubled
_WASTED_TRIES = 1_000  # windows that give nothing new, beyond ten per prompt, before we give up


class _TextEnds(Exception):
    """Too little text follows a start."""


class TextFiles:
    """Windows of the text the config's globs name, found by tokenising only what is cut.

    A window starts at any character, so a corpus of S bytes holds about S of them. Within a point
    no two prompts are equal. Two points draw from unrelated streams: that both choose the very same
    start among S has a chance of about N*N/S (N requests each), so a short corpus should not be
    used where many points share a server with a prefix cache.
    """

    def __init__(self, workload: WorkloadConfig, *, vocab_size: int, tokenizer_file: Path) -> None:
        if not tokenizer_file.is_file():
            raise ValueError(f"tokenizer file {tokenizer_file} does not exist; fetch the model first")
        self._workload = workload
        self._vocab_size = vocab_size
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_truncation()  # a tokenizer.json may carry both settings
        self._tokenizer.no_padding()
        self._corpus = Corpus(find_files(workload.files))

    def prompts(self, count: int, *, concurrency: int, repeat: int, phase: Phase) -> list[Prompt]:
        """See `workloads.source.Source.prompts`."""
        length = self._workload.input_len
        rng = point_rng("text_files", self._workload.seed, length, concurrency, repeat, phase)
        found: dict[str, Prompt] = {}
        tried: set[int] = set()
        limit = self._corpus.size  # starts at or past it leave too little text
        while len(found) < count:
            start = _untried(rng, limit, tried)
            if start is None or len(tried) > 10 * count + _WASTED_TRIES:
                raise self._too_short(count, len(found))
            tried.add(start)
            try:
                prompt = self._cut(start)
            except _TextEnds:
                limit = min(limit, start)
                continue
            if prompt is not None:
                found.setdefault(prompt.sha, prompt)
        return list(found.values())

    def _cut(self, start: int) -> Prompt | None:
        """The window at byte `start`, None when it does not serve; _TextEnds when the text ends first."""
        length = self._workload.input_len
        num_bytes = length * _BYTES_PER_TOKEN + 64
        while True:
            text = self._corpus.read(start, num_bytes)
            if text is None:
                return None
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            if len(encoding.ids) >= length:
                break
            if start + num_bytes >= self._corpus.size:
                raise _TextEnds
            num_bytes *= 2
        ids = encoding.ids[:length]
        window = text[: encoding.offsets[length - 1][1]]
        # A cut inside a word may tokenise differently on its own: then the text is not these ids.
        if self._tokenizer.encode(window, add_special_tokens=False).ids != ids:
            return None
        if max(ids) >= self._vocab_size:
            raise ValueError(
                f"the tokenizer gives id {max(ids)}, the model's vocab_size is {self._vocab_size}; "
                "use the tokenizer that belongs to the model"
            )
        return make_prompt(ids, self._workload.output_len, window)

    def _too_short(self, count: int, found: int) -> ValueError:
        where = ", ".join(self._workload.files) or "the Python standard library"
        return ValueError(
            f"{where}: {self._corpus.size} bytes hold only {found} of {count} different prompts of "
            f"{self._workload.input_len} tokens; add longer UTF-8 files to workload.files, "
            "lower workload.input_len or send fewer requests"
        )


def _untried(rng: np.random.Generator, limit: int, tried: set[int]) -> int | None:
    """A start below `limit` not tried yet, None when there is none left."""
    if limit <= 0:
        return None
    start = int(rng.integers(limit))
    for step in range(limit):
        candidate = (start + step) % limit
        if candidate not in tried:
            return candidate
    return None
