"""The admission rules: against their definitions, and what they come to in the engine."""

from __future__ import annotations

import math
import random

import pytest
from engine_cells import cell_of
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.admission import FullOutput, LookAhead, NewTokenRatio, make_admission
from harness.engine.engine import CannotServe, Engine, Event, Submission
from harness.engine.footprint import Footprint
from harness.schema import Config
from harness.validate import ConfigError

TIGHT = ["engine.device_kv_budget=300KiB", "engine.host_kv_budget=200KiB"]


def config_of(system: str, rule: str, *more: str) -> Config:
    return cell_of("dsa", system, *TIGHT, f"engine.admission={rule}", "engine.page_size=4", *more)


def test_slots_hold_the_device_for_good_and_host_pages_as_they_fill() -> None:
    config = config_of("hisparse_sync", "slots")
    rule, size = make_admission(config), Footprint(config).request
    assert rule.reserve(0, 10, 30)
    assert (rule.device_bytes, rule.host_bytes) == (size(40).device, size(10).host)
    assert rule.grow(0, 12)  # three pages of four are full, none is begun
    assert rule.host_bytes == size(10).host
    assert rule.grow(0, 13)
    assert (rule.device_bytes, rule.host_bytes) == (size(40).device, size(13).host)
    assert size(13).host > size(10).host
    rule.release(0)
    assert (rule.device_bytes, rule.host_bytes) == (0, 0)


def test_slots_let_more_requests_in_than_their_outputs_would_fit() -> None:
    entered = {}
    for name in ("full_output", "slots"):
        rule = make_admission(config_of("hisparse_sync", name, "engine.device_kv_budget=4MiB"))
        entered[name] = 0
        while rule.reserve(entered[name], 20, 100):
            entered[name] += 1
    assert 1 <= entered["full_output"] < entered["slots"] / 2


def test_without_slots_there_is_nothing_to_count() -> None:
    with pytest.raises(ConfigError, match="engine.admission=slots counts device cache slots, which offload=full_kv"):
        config_of("full_kv", "slots")


def test_conservativeness_means_something_to_one_rule_only() -> None:
    more = "engine.schedule_conservativeness=0.3"
    assert config_of("full_kv", "full_output", more).engine.schedule_conservativeness == 1.0
    assert config_of("full_kv", "new_token_ratio", more).engine.schedule_conservativeness == 0.3
    with pytest.raises(ConfigError, match="schedule_conservativeness=0.0 must be above 0"):
        config_of("full_kv", "new_token_ratio", "engine.schedule_conservativeness=0.0")


REQUESTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8)


@settings(max_examples=60)
@given(REQUESTS, st.integers(0, 700), st.data())
def test_new_token_ratio_is_sglangs_formula(requests: list[tuple[int, int]], steps: int, data: st.DataObject) -> None:
    """In tokens, as SGLang counts, with pages of one token: free >= the new one's prompt + output + what is expected of
    the running ones. Full KV's bytes are so many a token, so the budget is a number of tokens."""
    config = CONFIG
    per_token = Footprint(config).request(1).device
    room = int(config.engine.device_kv_budget) // per_token
    rule = NewTokenRatio(config)
    rule.stepped(steps)
    ratio = max(0.7 * 0.14, 0.7 - steps * (0.7 - 0.7 * 0.14) / 600)
    assert rule.ratio == pytest.approx(ratio)
    running: list[tuple[int, int]] = []  # tokens it has, tokens it may still generate
    for i, (prompt, new) in enumerate(requests):
        free = room - sum(has for has, _ in running)
        expected = sum(math.ceil(rule.ratio * left) for _, left in running)
        fits = prompt + new + expected <= free
        assert rule.reserve(i, prompt, new) == fits
        if not fits:
            return
        grown = data.draw(st.integers(0, new))
        if sum(has for has, _ in running) + prompt + grown <= room:
            assert rule.grow(i, prompt + grown)
            running.append((prompt + grown, new - grown))
        else:
            assert not rule.grow(i, prompt + grown)
            running.append((prompt, new))
        assert rule.device_bytes == per_token * sum(has for has, _ in running)


def _fit_token_by_token(running: list[tuple[int, int]], room: int) -> bool:
    """Brute force: all generate a token a step until they are done; (tokens it has, tokens it will generate)."""
    step = 0
    while alive := [(has, left) for has, left in running if left >= step]:
        if sum(has + step for has, _ in alive) > room:
            return False
        step += 1
    return True


@settings(max_examples=150)
@given(REQUESTS, st.data())
def test_look_ahead_is_walking_token_by_token(requests: list[tuple[int, int]], data: st.DataObject) -> None:
    room = int(CONFIG.engine.device_kv_budget) // Footprint(CONFIG).request(1).device
    rule = LookAhead(CONFIG)
    running: dict[int, tuple[int, int]] = {}
    for i, (prompt, new) in enumerate(requests):
        fits = _fit_token_by_token([*running.values(), (prompt, new)], room)
        fits &= sum(has + left for has, left in running.values()) + prompt <= room
        assert rule.reserve(i, prompt, new) == fits
        if fits:
            running[i] = (prompt, new)
        if running and (not fits or sum(has + left for has, left in running.values()) >= room):
            assert not rule.reserve(1000, 1, 1)  # nobody is tried before someone leaves
            gone = data.draw(st.sampled_from(sorted(running)))
            rule.release(gone)
            del running[gone]
        steps = min((left for _, left in running.values()), default=0)
        grown = data.draw(st.integers(0, steps))
        for j, (has, left) in running.items():
            assert rule.grow(j, has + grown)
            running[j] = (has + grown, left - grown)


def test_a_short_request_enters_beside_a_long_one_that_has_not_grown() -> None:
    config = cell_of("dense_gqa", "full_kv", "engine.page_size=1", "engine.device_kv_budget=200KiB")
    room = int(config.engine.device_kv_budget) // Footprint(config).request(1).device
    entered = {}
    for name, kind in (("look_ahead", LookAhead), ("full_output", FullOutput)):
        rule = kind(config)
        assert rule.reserve(0, 10, room - 25)
        entered[name] = rule.reserve(1, 10, 10)
    assert entered == {"look_ahead": True, "full_output": False}


CONFIG = cell_of(
    "dense_gqa", "full_kv", "engine.admission=new_token_ratio", "engine.page_size=1", "engine.device_kv_budget=200KiB"
)


def test_a_retraction_sets_the_ratio_and_time_brings_it_down() -> None:
    rule = NewTokenRatio(CONFIG)
    assert rule.reserve(0, 10, 40)
    assert rule.reserve(1, 10, 40)
    assert rule.grow(0, 30)
    rule.stepped(100)
    before = rule.ratio
    rule.release(1)
    rule.retracted()
    assert rule.ratio == pytest.approx((20 + 20) / (40 + 1))  # generated, and 20 steps more, of 40
    assert rule.ratio > before
    rule.stepped(10_000)
    assert rule.ratio == pytest.approx(0.7 * 0.14)


@pytest.mark.parametrize(
    ("system", "rule"),
    [("full_kv", "new_token_ratio"), ("hisparse_sync", "slots"), ("hisparse_sync", "new_token_ratio")],
)
def test_stable_steps_are_certain_and_not_too_few(system: str, rule: str) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        admission = make_admission(config_of(system, rule))
        ids = tuple(i for i in range(3) if admission.reserve(i, rng.randint(1, 40), rng.randint(20, 60)))
        lengths = {i: admission._held[i].positions + 1 for i in ids}
        if not all(admission.grow(i, lengths[i]) for i in ids):
            continue
        most = min(admission._held[i].total - lengths[i] + 1 for i in ids)
        promised = admission.stable_steps(ids, most, False)
        fits = 1
        while fits < most and all(admission.grow(i, lengths[i] + fits) for i in ids):
            fits += 1
        assert promised == fits
        if rule == "new_token_ratio":
            assert admission.stable_steps(ids, most, True) == 1


def serve(engine: Engine, prompt: list[int], new_tokens: int) -> list[int]:
    """A request served to its end."""
    tokens: list[int] = []

    def deliver(events: list[Event]) -> None:
        assert events[-1].finish_reason != "error", engine.failure
        tokens.extend(event.token for event in events if event.token is not None)

    engine.submit(Submission(prompt=prompt, max_new_tokens=new_tokens, deliver=deliver, ignore_eos=True))
    while engine.run_once():
        pass
    assert engine._flush_now() is None
    return tokens


@pytest.mark.parametrize("rule", ["full_output", "slots", "new_token_ratio"])
def test_a_context_beyond_the_whole_device_budget_is_served(rule: str) -> None:
    """By offload, with one layer's workspace for its prefill inside the budget; full KV has to refuse it."""
    prompt = [7 * i % 300 for i in range(230)]
    budget = "engine.device_kv_budget=120KiB"
    config = config_of("hisparse_sync", rule, budget, "engine.prefill_chunk_tokens=33")
    footprint = Footprint(config)
    records = 250 * footprint.num_layers * footprint.record_bytes
    assert records > int(config.engine.device_kv_budget) - footprint.workspace
    roomy = config_of("full_kv", "full_output", "engine.device_kv_budget=1MiB", "engine.prefill_chunk_tokens=33")
    served = serve(Engine(config, None), prompt, 20)
    assert served == serve(Engine(roomy, None), prompt, 20)
    assert len(served) == 20
    engine = Engine(config_of("full_kv", "full_output", budget), None)
    with pytest.raises(CannotServe, match="raise engine.device_kv_budget"):
        serve(engine, prompt, 20)


def test_a_budget_that_the_workspace_eats_refuses() -> None:
    config = config_of("hisparse_sync", "slots", "engine.device_kv_budget=50KiB")
    assert Footprint(config).workspace > 40 * 1024
    refusal = make_admission(config).refusal(1, 1)
    assert refusal is not None and "of prefill workspace" in refusal


@pytest.mark.parametrize("stage", ["waiting", "in its prompt", "decoding", "retracted", "catching up"])
@pytest.mark.parametrize("system", ["full_kv", "hisparse_sync"])
def test_cancelled_at_any_stage_it_leaves_nothing_and_the_others_go_on(system: str, stage: str) -> None:
    more = ["engine.prefill_chunk_tokens=8", "engine.batch_invariant=true", "model.num_layers=2"]
    more += ["engine.max_running_requests=2"]
    config = config_of(system, "new_token_ratio", *more)
    engine = Engine(config, None)
    told: dict[int, list[int]] = {}

    def deliver(events: list[Event]) -> None:
        for event in events:
            told.setdefault(event.request_id, []).append(event.token or 0)

    def submit(prompt: list[int], new_tokens: int) -> int:
        return engine.submit(Submission(prompt=prompt, max_new_tokens=new_tokens, deliver=deliver, ignore_eos=True))

    def job_of(request_id: int) -> object:
        return engine._scheduler._running.get(request_id)

    other = submit([5] * 6, 40)
    if stage == "waiting":
        submit([6] * 6, 40)
    target = submit([9] * 20, 30)
    reached = {
        "waiting": lambda: target in engine._scheduler._waiting and len(told.get(other, [])) > 3,
        "in its prompt": lambda: 0 < getattr(job_of(target), "computed", 0) < 20,
        "decoding": lambda: len(told.get(target, [])) > 4,
        "retracted": lambda: len(told.get(target, [])) > 4,
        "catching up": lambda: len(told.get(target, [])) > 8,
    }[stage]
    while not reached():
        assert engine.run_once()
    if stage in ("retracted", "catching up"):
        engine.retract(target)
        while engine._inbox:
            engine.run_once()
        assert target in engine._scheduler._waiting
    while stage == "catching up" and not getattr(job_of(target), "computed", 0) > 21:
        engine.run_once()
    before = list(told.get(target, []))
    engine.cancel(target)
    while engine.run_once():
        engine._executor.kv.check_integrity()
    assert told.get(target, []) == before
    assert len(told[other]) == 40
    assert engine._flush_now() is None
    assert told[other] == serve(Engine(config, None), [5] * 6, 40)
