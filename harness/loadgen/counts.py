"""How many tokens each piece of a stream carried, from the server's own counts and never from chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import sub
from statistics import mean, median, pstdev
from typing import NamedTuple

_HELD_BACK = 4  # a first chunk of more than this many times the usual size: tokens were withheld before it
_SAME_LENGTH = 0.3  # texts that vary by no more than this share of their mean may be of as many tokens each


@dataclass(slots=True)
class Deltas:
    """The streamed chunks that may carry output, in order: three parallel lists."""

    times_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    completed: list[int | None] = field(default_factory=list)  # tokens generated so far by a chunk's own `usage`

    def add(self, time_s: float, text: str, completed: int | None) -> None:
        """One more."""
        self.times_s.append(time_s)
        self.texts.append(text)
        self.completed.append(completed)

    def __len__(self) -> int:
        return len(self.times_s)


class Uncountable(ValueError):
    """The stream does not say how many tokens it carried, or contradicts itself."""


class TokenCounts(NamedTuple):
    """When tokens arrived. `times_s` and `tokens` are parallel: each chunk carried at least one token."""

    times_s: list[float]
    tokens: list[int]
    source: str  # "continuous_usage": counted chunk by chunk; "usage": spread from the final count
    held_back: bool  # the wire does not carry token times: the first chunk brings tokens made long before


def count_tokens(deltas: Deltas, total: int | None) -> TokenCounts:
    """Tokens per chunk of one response; `total` is the completion_tokens of the final `usage`.

    With continuous usage a chunk carries as many tokens as the count grew by, whatever its text.
    Without it only chunks with text carry tokens: one each when there are as many as tokens, else
    the final count is spread over them by length of text. Chunks that arrived together become one.
    Raises Uncountable.
    """
    if _is_continuous(deltas):
        return _together(_by_growth(deltas, total))
    if total is None:
        raise Uncountable("no usage in the stream, so its tokens cannot be counted")
    return _together(_by_text(deltas, total))


def _together(counts: TokenCounts) -> TokenCounts:
    """With one chunk for all that arrived at one time: how they were cut says nothing about when tokens were made."""
    if len(set(counts.times_s)) == len(counts.times_s):
        return counts
    times_s: list[float] = []
    tokens: list[int] = []
    for time_s, number in zip(counts.times_s, counts.tokens, strict=True):
        if times_s and time_s == times_s[-1]:
            tokens[-1] += number
        else:
            times_s.append(time_s)
            tokens.append(number)
    return counts._replace(times_s=times_s, tokens=tokens)


def _is_continuous(deltas: Deltas) -> bool:
    """Whether every chunk with text came with its own count (a server may send 0 until the end)."""
    if all(deltas.completed):
        return len(deltas) > 0
    counted = any(deltas.completed)
    return counted and all(done for text, done in zip(deltas.texts, deltas.completed, strict=True) if text)


def _by_growth(deltas: Deltas, total: int | None) -> TokenCounts:
    counted = [(at, done) for at, done in zip(deltas.times_s, deltas.completed, strict=True) if done is not None]
    so_far = [done for _, done in counted]
    grown = list(map(sub, so_far, [0, *so_far]))
    if min(grown) < 0:
        at = next(place for place, growth in enumerate(grown) if growth < 0)
        raise Uncountable(f"continuous usage falls from {so_far[at - 1]} to {so_far[at]} tokens")
    if total is not None and total != so_far[-1]:
        raise Uncountable(f"continuous usage ends at {so_far[-1]} tokens, the final usage says {total}")
    times_s = [at for (at, _), growth in zip(counted, grown, strict=True) if growth]
    tokens = [growth for growth in grown if growth]
    return TokenCounts(times_s, tokens, "continuous_usage", _held_back(tokens))


def _by_text(deltas: Deltas, total: int) -> TokenCounts:
    times_s = [at for at, text in zip(deltas.times_s, deltas.texts, strict=True) if text]
    lengths = [len(text) for text in deltas.texts if text]
    if not lengths and total:
        raise Uncountable(f"usage says {total} tokens, but no chunk carried text")
    if len(lengths) > total:
        raise Uncountable(f"{len(lengths)} chunks carried text, but usage says {total} tokens")
    tokens = _spread(total, lengths)
    return TokenCounts(times_s, tokens, "usage", _held_back(tokens))


def _held_back(tokens: list[int]) -> bool:
    """Whether the first chunk is far larger than the others (than one token, when it is the only one)."""
    usual = median(tokens[1:]) if len(tokens) > 1 else 1
    return bool(tokens) and tokens[0] > _HELD_BACK * usual


def _spread(total: int, lengths: list[int]) -> list[int]:
    """`total` tokens over chunks of these text lengths: one each, the rest where text is in excess.

    Where all chunks but a shorter last one can have had the same number of tokens, and their lengths do not
    speak against it, they had: servers that stream every k tokens are more common than chance.
    """
    extra = total - len(lengths)
    if extra == 0:
        return [1] * len(lengths)
    usual = -(-total // len(lengths)) if lengths else 0
    last = total - usual * (len(lengths) - 1)
    if 1 <= last <= usual and pstdev(lengths[:-1] or [1]) <= _SAME_LENGTH * mean(lengths[:-1] or [1]):
        return [usual] * (len(lengths) - 1) + [last]
    per_token = sum(lengths) / total
    excess = [max(length - per_token, 0.0) for length in lengths]
    scale = extra / sum(excess)
    shares = [scale * share for share in excess]
    tokens = [1 + int(share) for share in shares]
    # What rounding down left over goes to the largest remainders.
    by_remainder = sorted(range(len(shares)), key=lambda i: int(shares[i]) - shares[i])
    for i in by_remainder[: total - sum(tokens)]:
        tokens[i] += 1
    return tokens
