"""Who enters when: our look-ahead beside what a real SGLang 0.5.23 did (data/sglang_admission.json).

A request was let in after certain others had ended. That set is a decision of the rule alone, whatever a step takes.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from harness.config import load_cells
from harness.engine.admission import make_admission
from harness.engine.footprint import Footprint
from harness.engine.scheduler import Job, Plan, Scheduler

FILE = Path(__file__).parent / "data" / "sglang_admission.json"
Trace = dict[str, list[list[object]]]


@functools.cache
def _recorded() -> dict[str, object]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def _traces() -> dict[str, Trace]:
    return _recorded()["traces"]  # type: ignore[return-value]


def _before(events: list[list[object]]) -> dict[int, frozenset[int]]:
    """Of each request: which had ended when it came in."""
    ended: set[int] = set()
    found = {}
    for what, number in events:
        if what == "end":
            ended.add(int(str(number)))
        else:
            found[int(str(number))] = frozenset(ended)
    return found


def _ours(requests: list[list[int]], tokens: int, rule: str) -> list[list[object]]:
    """The same requests through our scheduler, with prompts computed while nobody decodes, as SGLang does it."""
    base = ["experiment=quickstart", "offload=full_kv", f"engine.admission={rule}", "engine.page_size=1"]
    (config,) = load_cells([*base, "engine.device_kv_budget=64MiB"])
    config.engine.device_kv_budget = tokens * Footprint(config).request(1).device
    scheduler = Scheduler(make_admission(config), 64, 8192)
    for number, (prompt, output) in enumerate(requests):
        scheduler.add(Job(request_id=number, prompt_len=prompt, max_new_tokens=output))
    events: list[list[object]] = []
    while plan := scheduler.plan():
        assert not plan.retracted
        ended = scheduler.advance(Plan(plan.admitted, plan.prefill, ()) if plan.prefill else plan)
        events += [["in", chunk.request_id] for chunk in plan.prefill if chunk.is_last]
        events += [["end", number] for number in ended]
    return events


@pytest.mark.parametrize("name", ["mixed", "long_prompts", "long_outputs"])
def test_look_ahead_lets_in_whom_sglang_let_in(name: str) -> None:
    trace, server = _traces()[name], _recorded()["server"]
    room = int(server["max_total_num_tokens"])  # type: ignore[index]
    # SGLang keeps a token free for each request, and a request's last token, which it never stores, counts too
    ours = _before(_ours(trace["requests"], room - 2, "look_ahead"))  # type: ignore[arg-type]
    theirs = _before(trace["events"])
    assert ours == theirs


def test_reserving_whole_lengths_lets_fewer_in() -> None:
    """The recording tells the two rules apart."""
    room = int(_recorded()["server"]["max_total_num_tokens"])  # type: ignore[index]
    differ = 0
    for trace in _traces().values():
        ours, theirs = _before(_ours(trace["requests"], room - 2, "full_output")), _before(trace["events"])  # type: ignore[arg-type]
        differ += sum(len(ours[number]) > len(theirs[number]) for number in theirs)
    assert differ > 10
