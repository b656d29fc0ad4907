"""Prompts from a LongBench-v2 file: a JSON list of multiple-choice questions on long contexts.

Fields read: context, question, choice_A to choice_D. A context that is too long loses its middle, as in
LongBench's own evaluation, so that the question stays whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.schema import WorkloadConfig
from workloads.encoder import Encoder
from workloads.jsonfile import Malformed, data_file, json_list
from workloads.prompt import Phase, Prompt, make_prompt, point_rng

_FIELDS = ("context", "question", "choice_A", "choice_B", "choice_C", "choice_D")
_CHARS_PER_TOKEN = 12  # at most this many are tokenised to fill one token's room


class LongBench:
    """Questions in an order of each point's own; all points draw from the one file."""

    def __init__(self, workload: WorkloadConfig, *, encoder: Encoder) -> None:
        self._workload, self._encoder = workload, encoder
        self._path = data_file(workload.files[0])
        self._items = [_checked(item, self._path, i) for i, item in enumerate(json_list(self._path), start=1)]
        if not self._items:
            raise ValueError(f"{self._path}: holds no question")

    def prompts(self, count: int, *, concurrency: int, repeat: int, phase: Phase) -> list[Prompt]:
        """See `workloads.source.Source.prompts`."""
        rng = point_rng("longbench_v2", self._workload.seed, concurrency, repeat, phase)
        found: dict[str, Prompt] = {}
        for index in rng.permutation(len(self._items)):
            if len(found) == count:
                break
            prompt = self._prompt(self._items[index])
            if prompt is not None:
                found.setdefault(prompt.sha, prompt)
        if len(found) < count:
            raise ValueError(
                f"{self._path}: {len(found)} of its {len(self._items)} questions are different and fit into "
                f"{self._workload.longest[0]} tokens, not {count}: raise workload.max_input_len or send fewer requests"
            )
        return list(found.values())

    def _prompt(self, item: dict[str, str]) -> Prompt | None:
        """None where the question alone is too long."""
        before, after = "Read the text, then answer the question on it.\n\n", _question(item)
        head, tail = self._encoder.ids(before), self._encoder.ids(after)
        room = self._workload.longest[0] - len(head) - len(tail)
        if room < 1:
            return None
        ids = [*head, *self._context(item["context"], room), *tail]
        return make_prompt(ids, self._workload.output_len, self._encoder.decode(ids))

    def _context(self, text: str, room: int) -> list[int]:
        """At most `room` ids: all of it, or its beginning and its end."""
        most = room * _CHARS_PER_TOKEN
        if len(text) <= 2 * most:
            ids = self._encoder.ids(text)
            if len(ids) <= room:
                return ids
            start, end = ids, ids
        else:  # tokenising megabytes to keep a few thousand tokens would take minutes
            start, end = self._encoder.ids(text[:most]), self._encoder.ids(text[-most:])
        last = room // 2
        return start[: room - last] + (end[-last:] if last else [])


def _question(item: dict[str, str]) -> str:
    choices = "\n".join(f"({letter}) {item[f'choice_{letter}'].strip()}" for letter in "ABCD")
    return f"\n\nQuestion: {item['question'].strip()}\n{choices}\n\nThe letter of the right answer:"


def _checked(item: Any, path: Path, number: int) -> dict[str, str]:
    for name in _FIELDS:
        if not isinstance(item, dict) or not isinstance(item.get(name), str):
            raise Malformed(path, number, f"has no text `{name}`", unit="question")
    return item
