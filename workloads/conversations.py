"""Prompts from a ShareGPT-format file: a JSON list of conversations, each a list of turns.

`[{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}]`. A conversation's first
question is the prompt; as many tokens are asked for as its answer has. Conversations without both are left out.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.schema import WorkloadConfig
from workloads.encoder import Encoder
from workloads.jsonfile import Malformed, data_file, json_list
from workloads.prompt import Phase, Prompt, make_prompt, point_rng, text_prompt

_ASKS, _ANSWERS = {"human", "user"}, {"gpt", "assistant", "chatgpt", "bing", "bard"}


class Conversations:
    """First exchanges in an order of each point's own; all points draw from the one file.

    Without an encoder prompts are text, as many tokens are asked for as `workload.output_len` says, and no
    prompt is left out for its length.
    """

    def __init__(self, workload: WorkloadConfig, *, encoder: Encoder | None) -> None:
        self._workload, self._encoder = workload, encoder
        self._path = data_file(workload.files[0])
        self._pairs: list[tuple[str, str]] = [pair for pair in _read(self._path) if all(text.strip() for text in pair)]

    def prompts(self, count: int, *, concurrency: int, repeat: int, phase: Phase) -> list[Prompt]:
        """See `workloads.source.Source.prompts`."""
        rng = point_rng("sharegpt", self._workload.seed, concurrency, repeat, phase)
        found: dict[str, Prompt] = {}
        for index in rng.permutation(len(self._pairs)):
            if len(found) == count:
                break
            prompt = self._prompt(*self._pairs[index])
            if prompt is not None:
                found.setdefault(prompt.sha, prompt)
        if len(found) < count:
            limits = " and ".join(map(str, self._workload.longest))
            raise ValueError(
                f"{self._path}: of {len(self._pairs)} conversations {len(found)} are different and within {limits} "
                f"tokens, not {count}: raise workload.max_input_len and max_output_len or send fewer requests"
            )
        return list(found.values())

    def _prompt(self, question: str, answer: str) -> Prompt | None:
        """None where it is longer than the limits."""
        if self._encoder is None:
            return text_prompt(question, self._workload.output_len)
        limit_in, limit_out = self._workload.longest
        ids, output_len = self._encoder.ids(question), len(self._encoder.ids(answer))
        if not (0 < len(ids) <= limit_in and 0 < output_len <= limit_out):
            return None
        return make_prompt(ids, output_len, question)


def _read(path: Path) -> list[tuple[str, str]]:
    """First question and answer of each conversation that has both. Raises ValueError, Malformed."""
    found = []
    for number, item in enumerate(json_list(path), start=1):
        turns = item.get("conversations", item.get("conversation")) if isinstance(item, dict) else None
        if not isinstance(turns, list):
            raise Malformed(path, number, "has no list of `conversations`", unit="conversation")
        said = [_turn(turn, path, number) for turn in turns]
        for (asker, question), (answerer, answer) in pairwise(said):
            if asker in _ASKS and answerer in _ANSWERS:
                found.append((question, answer))
                break
    if not found:
        raise ValueError(f"{path}: holds no conversation with a question and an answer")
    return found


def _turn(turn: Any, path: Path, number: int) -> tuple[str, str]:
    """(who, what)."""
    if isinstance(turn, dict):
        who, what = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if isinstance(who, str) and isinstance(what, str):
            return who.lower(), what
    raise Malformed(path, number, "a turn lacks the texts `from` and `value`", unit="conversation")
