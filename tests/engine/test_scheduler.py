"""The scheduler under random traffic, against a ledger of its own that only knows the rules."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.scheduler import Job, Plan, Scheduler

BUDGET = 100


def _cost(prompt_len: int, max_new_tokens: int) -> int:
    return prompt_len + max_new_tokens


@dataclass
class Budget:
    """An admission that holds one byte a token."""

    held: dict[int, int] = field(default_factory=dict)

    def refusal(self, prompt_len: int, max_new_tokens: int) -> str | None:
        return "never" if _cost(prompt_len, max_new_tokens) > BUDGET else None

    def reserve(self, request_id: int, prompt_len: int, max_new_tokens: int) -> bool:
        if self.device_bytes + _cost(prompt_len, max_new_tokens) > BUDGET:
            return False
        self.held[request_id] = _cost(prompt_len, max_new_tokens)
        return True

    def grow(self, request_id: int, positions: int) -> bool:
        return request_id in self.held  # all of it was reserved

    def release(self, request_id: int) -> None:
        del self.held[request_id]

    def stepped(self, steps: int) -> None:
        pass

    def retracted(self) -> None:
        raise AssertionError("nobody is ever retracted")

    def stable_steps(self, request_ids: tuple[int, ...], steps: int, someone_waits: bool) -> int:
        return steps

    @property
    def device_bytes(self) -> int:
        return sum(self.held.values())

    @property
    def host_bytes(self) -> int:
        return 0


@dataclass(frozen=True)
class Request:
    arrival: int  # step
    prompt_len: int
    max_new_tokens: int
    eos_after: int | None  # generated tokens, when it stops by itself
    cancel_at: int | None  # step

    def job(self, request_id: int) -> Job:
        return Job(
            request_id=request_id,
            prompt_len=self.prompt_len,
            max_new_tokens=self.max_new_tokens,
            may_stop_early=self.eos_after is not None,
        )


REQUESTS = st.builds(
    Request,
    arrival=st.integers(0, 12),
    prompt_len=st.integers(1, 70),
    max_new_tokens=st.integers(1, 30),
    eos_after=st.none() | st.integers(1, 30),
    cancel_at=st.none() | st.integers(0, 40),
)
TRAFFIC = st.lists(REQUESTS, min_size=1, max_size=12)


class Watched:
    """Runs traffic through a scheduler and checks every plan."""

    def __init__(self, traffic: list[Request], max_running: int, chunk_tokens: int):
        self.traffic, self.max_running, self.chunk_tokens = traffic, max_running, chunk_tokens
        self.admission = Budget()
        self.scheduler = Scheduler(self.admission, max_running, chunk_tokens)
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.prefilled = dict.fromkeys(range(len(traffic)), 0)
        self.generated = dict.fromkeys(range(len(traffic)), 0)
        self.cancelled: set[int] = set()
        self.ended: set[int] = set()

    def run(self) -> None:
        step = 0
        while step <= max(r.arrival for r in self.traffic) or self.waiting or self.running:
            self._arrive_and_cancel(step)
            self._step()
            step += 1
            assert step < 2000, "it does not end"
        assert not self.scheduler.plan()
        assert (self.scheduler.num_waiting, self.scheduler.num_running) == (0, 0)
        assert self.admission.held == {}
        assert self.ended | self.cancelled == set(range(len(self.traffic)))
        for i in self.ended:
            request = self.traffic[i]
            assert self.prefilled[i] == request.prompt_len
            assert self.generated[i] == min(request.max_new_tokens, request.eos_after or request.max_new_tokens)

    def _arrive_and_cancel(self, step: int) -> None:
        for i, request in enumerate(self.traffic):
            if request.arrival == step:
                self.scheduler.add(request.job(i))
                self.waiting.append(i)
            known = i in self.waiting or i in self.running
            if request.cancel_at is not None and known and step >= request.cancel_at:
                assert self.scheduler.cancel(i) == (i in self.running)
                (self.running if i in self.running else self.waiting).remove(i)
                self.cancelled.add(i)

    def _step(self) -> None:
        plan = self.scheduler.plan()
        self._check_admission(plan)
        self._check_prefill(plan)
        ready = [i for i in self.running if self.prefilled[i] == self.traffic[i].prompt_len]
        assert list(plan.decode) == ready
        gained = [*(c.request_id for c in plan.prefill if c.is_last), *plan.decode]
        for chunk in plan.prefill:
            self.prefilled[chunk.request_id] += chunk.length
        for i in gained:
            self.generated[i] += 1
        stopped = {i for i in gained if self.generated[i] == self.traffic[i].eos_after}
        ended = self.scheduler.advance(plan, finished=stopped)
        full = {i for i in gained if self.generated[i] == self.traffic[i].max_new_tokens}
        assert set(ended) == stopped | full
        assert len(ended) == len(set(ended))
        self.ended |= set(ended)
        self.running = [i for i in self.running if i not in self.ended]
        assert self.scheduler.num_running == len(self.running)
        assert self.scheduler.num_waiting == len(self.waiting)
        assert set(self.admission.held) == set(self.running)

    def _check_admission(self, plan: Plan) -> None:
        """First come, first served, as many as fit: worked out from the rule."""
        expected: list[int] = []
        used = sum(_cost(self.traffic[i].prompt_len, self.traffic[i].max_new_tokens) for i in self.running)
        for i in self.waiting:
            used += _cost(self.traffic[i].prompt_len, self.traffic[i].max_new_tokens)
            if used > BUDGET or len(self.running) + len(expected) == self.max_running:
                break
            expected.append(i)
        assert list(plan.admitted) == expected
        self.waiting = self.waiting[len(expected) :]
        self.running += expected
        assert len(self.running) <= self.max_running
        assert self.admission.device_bytes <= BUDGET

    def _check_prefill(self, plan: Plan) -> None:
        unfinished = [i for i in self.running if self.prefilled[i] < self.traffic[i].prompt_len]
        assert sum(chunk.length for chunk in plan.prefill) <= self.chunk_tokens
        ids = [chunk.request_id for chunk in plan.prefill]
        assert len(ids) == len(set(ids)) and [i for i in unfinished if i in ids] == ids
        assert ids[:1] == unfinished[:1], "the oldest prompt goes on in every step"
        for chunk in plan.prefill:
            prompt_len = self.traffic[chunk.request_id].prompt_len
            assert chunk.start == self.prefilled[chunk.request_id]
            assert chunk.start % self.chunk_tokens == 0, "cut where the request alone would be cut"
            assert chunk.length == min(self.chunk_tokens, prompt_len - chunk.start)
            assert chunk.is_last == (chunk.start + chunk.length == prompt_len)


@settings(max_examples=200)
@given(TRAFFIC, st.integers(1, 6), st.integers(1, 40))
def test_random_traffic_keeps_every_rule(traffic: list[Request], max_running: int, chunk_tokens: int) -> None:
    Watched(traffic, max_running, chunk_tokens).run()


@settings(max_examples=150)
@given(TRAFFIC, st.integers(1, 6), st.integers(1, 40))
def test_a_jump_of_stable_steps_equals_stepping(traffic: list[Request], max_running: int, chunk_tokens: int) -> None:
    stepping = Scheduler(Budget(), max_running, chunk_tokens)
    for i, request in enumerate(traffic):
        stepping.add(request.job(i))
    may_stop = {i for i, request in enumerate(traffic) if request.eos_after is not None}
    while plan := stepping.plan():
        steps = stepping.stable_steps(plan)
        assert steps >= 1
        if plan.prefill or may_stop & set(plan.decode):
            assert steps == 1
        jumping = copy.deepcopy(stepping)
        ended = jumping.advance(plan, steps)
        for left in range(steps - 1, -1, -1):
            step_ended = stepping.advance(plan)
            if left:
                assert step_ended == []  # nobody leaves before the last
                plan = stepping.plan()
                assert plan.admitted == () and plan.prefill == ()
            else:
                assert step_ended == ended
        assert stepping == jumping
        if steps > 1:
            assert ended, "it jumps to where something changes"
    assert stepping.num_waiting == 0


def test_stable_steps_do_jump() -> None:
    scheduler = Scheduler(Budget(), 4, 16)
    scheduler.add(Job(request_id=0, prompt_len=3, max_new_tokens=9))
    scheduler.add(Job(request_id=1, prompt_len=3, max_new_tokens=7))
    plan = scheduler.plan()
    assert scheduler.stable_steps(plan) == 1
    scheduler.advance(plan)
    plan = scheduler.plan()
    assert scheduler.stable_steps(plan) == 6
    assert scheduler.advance(plan, 6) == [1]
    assert scheduler.stable_steps(scheduler.plan()) == 2


def test_nobody_overtakes_a_request_that_does_not_fit_yet() -> None:
    scheduler = Scheduler(Budget(), 4, 16)
    for i, prompt_len in enumerate((50, 60, 5)):
        scheduler.add(Job(request_id=i, prompt_len=prompt_len, max_new_tokens=1))
    assert scheduler.plan().admitted == (0,)
    assert scheduler.plan().admitted == ()
    assert scheduler.cancel(0)
    assert scheduler.plan().admitted == (1, 2)


def test_an_idle_scheduler_plans_nothing() -> None:
    scheduler = Scheduler(Budget(), 4, 16)
    assert not scheduler.plan()
    assert not scheduler.cancel(7)
