"""One prompt, its fingerprint, and the random stream each point draws its prompts from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

Phase = Literal["measured", "warmup"]


@dataclass(kw_only=True, slots=True)
class Prompt:
    """What one request asks: `token_ids` are sent as they are, `text` where there are none or the server wants text."""

    token_ids: list[int]  # empty: text that was not tokenised
    input_len: int | None  # tokens; None: unknown until the server counts them
    output_len: int  # tokens to generate
    sha: str  # of the ids, else of the text: equal prompts have equal values
    text: str | None = None  # what the ids say; None when they are random
    arrival_s: float | None = None  # of a trace: seconds after its first request


def make_prompt(token_ids: list[int], output_len: int, text: str | None = None) -> Prompt:
    """A prompt with its length and fingerprint filled in."""
    sha = hashlib.sha256(np.asarray(token_ids, dtype="<i8").tobytes()).hexdigest()
    return Prompt(token_ids=token_ids, input_len=len(token_ids), output_len=output_len, sha=sha, text=text)


def text_prompt(text: str, output_len: int) -> Prompt:
    """A prompt of text alone, for where there is no tokenizer: the server counts its tokens."""
    sha = hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
    return Prompt(token_ids=[], input_len=None, output_len=output_len, sha=sha, text=text)


def point_rng(*parts: object) -> np.random.Generator:
    """A random stream that belongs to `parts` alone (kind, seed, concurrency, repeat, phase, ...).

    The parts are hashed, so neighbouring points or seeds share nothing: a generator seeded with
    `seed + repeat` would replay one point's prompts in another and hit a warm prefix cache.
    """
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
