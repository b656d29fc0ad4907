"""Prompts of exact token lengths, cut from real files at random places."""

from __future__ import annotations

import numpy as np

from harness.schema import LengthKind, WorkloadConfig
from workloads.corpus import Corpus, find_files
from workloads.encoder import Encoder
from workloads.lengths import length_drawer
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

    def __init__(self, workload: WorkloadConfig, *, encoder: Encoder) -> None:
        self._workload = workload
        self._encoder = encoder
        self._corpus = Corpus(find_files(workload.files))
        self._draw_lengths = length_drawer(workload)

    def prompts(self, count: int, *, concurrency: int, repeat: int, phase: Phase) -> list[Prompt]:
        """See `workloads.source.Source.prompts`."""
        key = (self._workload.seed, self._workload.input_len, concurrency, repeat, phase)
        lengths_rng, rng = point_rng("lengths", *key), point_rng("text_files", *key)
        found: dict[str, Prompt] = {}
        tried: set[int] = set()
        limit = self._corpus.size  # starts at or past it leave too little text
        lengths = self._draw_lengths(lengths_rng)
        while len(found) < count:
            start = _untried(rng, limit, tried)
            if start is None or len(tried) > 10 * count + _WASTED_TRIES:
                raise self._too_short(count, len(found))
            tried.add(start)
            try:
                prompt = self._cut(start, *lengths)
            except _TextEnds:
                if self._workload.lengths is LengthKind.fixed:  # a shorter prompt may fit there
                    limit = min(limit, start)
                continue
            if prompt is not None and prompt.sha not in found:
                found[prompt.sha] = prompt
                lengths = self._draw_lengths(lengths_rng)
        return list(found.values())

    def _cut(self, start: int, length: int, output_len: int) -> Prompt | None:
        """The window at byte `start`, None when it does not serve; _TextEnds when the text ends first."""
        num_bytes = length * _BYTES_PER_TOKEN + 64
        while True:
            text = self._corpus.read(start, num_bytes)
            if text is None:
                return None
            encoding = self._encoder.encode(text)
            if len(encoding.ids) >= length:
                break
            if start + num_bytes >= self._corpus.size:
                raise _TextEnds
            num_bytes *= 2
        ids = encoding.ids[:length]
        window = text[: encoding.offsets[length - 1][1]]
        # A cut inside a word may tokenise differently on its own: then the text is not these ids.
        if self._encoder.encode(window).ids != ids:
            return None
        return make_prompt(self._encoder.checked(ids), output_len, window)

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
