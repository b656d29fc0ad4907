"""Retraction: the scheduler over a ledger that grows and runs out, under random traffic, against the rules."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.scheduler import Job, Plan, Scheduler

PAGES, PAGE = 12, 4
LONGEST = PAGES * PAGE


@dataclass
class Pages:
    """A ledger of pages: a request enters with what it knows and `spare` more pages free, and grows page by page."""

    spare: int = 0
    held: dict[int, int] = field(default_factory=dict)  # positions there is room for
    retractions: int = 0
    steps: int = 0

    @property
    def free(self) -> int:
        return PAGES - sum(-(-positions // PAGE) for positions in self.held.values())

    def reserve(self, request_id: int, known: int, left: int) -> bool:
        assert request_id not in self.held
        if -(-known // PAGE) + (self.spare if self.held else 0) > self.free:
            return False
        self.held[request_id] = known
        return True

    def grow(self, request_id: int, positions: int) -> bool:
        before = self.held[request_id]
        self.held[request_id] = max(before, positions)
        if self.free < 0:
            self.held[request_id] = before
            return False
        return True

    def release(self, request_id: int) -> None:
        del self.held[request_id]

    def stepped(self, steps: int) -> None:
        self.steps += steps

    def retracted(self) -> None:
        self.retractions += 1

    def stable_steps(self, request_ids: tuple[int, ...], steps: int, someone_waits: bool) -> int:
        """Tried out a step at a time; free pages only become fewer, so nobody can enter meanwhile."""
        trial = copy.deepcopy(self)
        for step in range(1, steps):
            if not all(trial.grow(i, self.held[i] + step) for i in request_ids):
                return step
        return steps


@dataclass(frozen=True)
class Request:
    arrival: int  # step
    prompt_len: int
    max_new_tokens: int
    eos_after: int | None
    cancel_at: int | None  # step
    retract_at: int | None  # step, by hand


REQUESTS = st.builds(
    Request,
    arrival=st.integers(0, 12),
    prompt_len=st.integers(1, 20),
    max_new_tokens=st.integers(1, LONGEST - 20),
    eos_after=st.none() | st.integers(1, 30),
    cancel_at=st.none() | st.integers(0, 60),
    retract_at=st.none() | st.integers(0, 60),
)
TRAFFIC = st.lists(REQUESTS, min_size=1, max_size=8)


class Watched:
    """A model of a server that computes and forgets KV, and checks every plan against it."""

    def __init__(self, traffic: list[Request], max_running: int, chunk_tokens: int, spare: int):
        self.traffic, self.chunk_tokens = traffic, chunk_tokens
        self.ledger = Pages(spare)
        self.scheduler = Scheduler(self.ledger, max_running, chunk_tokens)  # type: ignore[arg-type]
        self.kv: dict[int, int] = {}  # of running requests: positions computed, in order of admission
        self.generated = dict.fromkeys(range(len(traffic)), 0)
        self.queue: list[int] = []
        self.left: set[int] = set()
        self.cancelled: set[int] = set()
        self.retracted = 0

    def run(self) -> None:
        step = 0
        while step <= max(r.arrival for r in self.traffic) or self.queue or self.kv:
            self._arrive_cancel_retract(step)
            self._step()
            step += 1
            assert step < 5000, "it does not end"
        assert self.ledger.held == {}
        assert not self.scheduler.plan()
        assert self.left | self.cancelled == set(range(len(self.traffic)))
        for i in self.left:
            request = self.traffic[i]
            assert self.generated[i] == min(request.max_new_tokens, request.eos_after or request.max_new_tokens)

    def _arrive_cancel_retract(self, step: int) -> None:
        for i, request in enumerate(self.traffic):
            if request.arrival == step:
                stops = request.eos_after is not None
                job = Job(request_id=i, prompt_len=request.prompt_len, max_new_tokens=request.max_new_tokens)
                job.may_stop_early = stops
                self.scheduler.add(job)
                self.queue.append(i)
            if request.retract_at == step and i in self.kv:
                assert self.scheduler.retract(i)
                self._back_to_the_queue(i)
            if request.cancel_at is not None and step >= request.cancel_at and (i in self.kv or i in self.queue):
                assert self.scheduler.cancel(i) == (i in self.kv)
                if self.kv.pop(i, None) is None:
                    self.queue.remove(i)
                self.cancelled.add(i)
        assert not self.scheduler.retract(1000)

    def _back_to_the_queue(self, i: int) -> None:
        del self.kv[i]
        self.queue.insert(0, i)

    def _step(self) -> None:
        plan = self.scheduler.plan()
        for i in plan.retracted:
            assert i == list(self.kv)[-1], "the youngest goes first"
            self._back_to_the_queue(i)
            self.retracted += 1
        assert not (plan.retracted and plan.admitted)
        assert self.kv or not plan.retracted, "somebody is left to go on"
        for i in plan.admitted:
            assert i == self.queue.pop(0), "nobody overtakes"
            self.kv[i] = 0
        assert set(self.ledger.held) == set(self.kv)
        assert self.ledger.free >= 0
        assert plan or not self.kv
        self._compute(plan)

    def _compute(self, plan: Plan) -> None:
        gained = []
        for chunk in plan.prefill:
            assert chunk.start == self.kv[chunk.request_id]
            assert chunk.start % self.chunk_tokens == 0, "cut as the first time"
            self.kv[chunk.request_id] += chunk.length
            done = self.kv[chunk.request_id] == self.traffic[chunk.request_id].prompt_len
            assert chunk.is_last == done
            if done and self.generated[chunk.request_id] == 0:
                gained.append(chunk.request_id)
        for i in plan.decode:
            self.kv[i] += 1
            assert self.kv[i] <= self.traffic[i].prompt_len + self.generated[i], "fed a token nobody knows"
            assert self.kv[i] <= self.ledger.held[i], "KV beyond what is reserved"
            if self.kv[i] == self.traffic[i].prompt_len + self.generated[i]:
                gained.append(i)
        for i in gained:
            self.generated[i] += 1
        stopped = {i for i in gained if self.generated[i] == self.traffic[i].eos_after}
        ended = set(self.scheduler.advance(plan, finished=stopped))
        assert ended == stopped | {i for i in gained if self.generated[i] == self.traffic[i].max_new_tokens}
        for i in ended:
            del self.kv[i]
        self.left |= ended


@settings(max_examples=200)
@given(TRAFFIC, st.integers(1, 6), st.integers(1, 24), st.integers(0, 2))
def test_random_traffic_under_pressure_keeps_every_rule(
    traffic: list[Request], max_running: int, chunk_tokens: int, spare: int
) -> None:
    Watched(traffic, max_running, chunk_tokens, spare).run()


def test_pressure_does_arise() -> None:
    watched = Watched([Request(0, 6, 40, None, None, None)] * 4, 4, 8, 0)
    watched.run()
    assert watched.retracted > 3
    assert watched.ledger.retractions > 0
    assert watched.generated == dict.fromkeys(range(4), 40)


@settings(max_examples=150)
@given(TRAFFIC, st.integers(1, 6), st.integers(1, 24))
def test_a_jump_of_stable_steps_equals_stepping(traffic: list[Request], max_running: int, chunk_tokens: int) -> None:
    stepping = Scheduler(Pages(), max_running, chunk_tokens)  # type: ignore[arg-type]
    for i, request in enumerate(traffic):
        stepping.add(Job(request_id=i, prompt_len=request.prompt_len, max_new_tokens=request.max_new_tokens))
    for step in range(5000):
        if not (plan := stepping.plan()):
            break
        if step == 7 and plan.decode:  # somebody is behind for a while
            stepping.retract(plan.decode[0])
            continue
        steps = stepping.stable_steps(plan)
        jumping = copy.deepcopy(stepping)
        ended = jumping.advance(plan, steps)
        for left in range(steps - 1, -1, -1):
            step_ended = stepping.advance(plan)
            if left:
                assert step_ended == []
                repeated = stepping.plan()
                assert (repeated.admitted, repeated.prefill, repeated.retracted) == ((), (), ())
                assert repeated.decode == plan.decode
            else:
                assert step_ended == ended
        assert stepping == jumping
    assert (stepping.num_waiting, stepping.num_running) == (0, 0)


def test_a_retracted_request_is_computed_again_token_by_token() -> None:
    scheduler = Scheduler(Pages(), 4, 8)  # type: ignore[arg-type]
    scheduler.add(Job(request_id=0, prompt_len=10, max_new_tokens=9))
    for _ in range(6):  # two chunks, then four tokens
        scheduler.advance(scheduler.plan())
    assert scheduler.retract(0)
    assert (scheduler.num_waiting, scheduler.num_running) == (1, 0)
    seen: list[tuple[int, int]] = []
    while plan := scheduler.plan():
        seen += [(chunk.start, chunk.length) for chunk in plan.prefill]
        if plan.decode:
            job = scheduler._running[0]
            seen.append((job.behind, job.generated))
        scheduler.advance(plan)
    #        prompt                behind, the client has 5 tokens            new tokens
    assert seen == [(0, 8), (8, 2), (4, 5), (3, 5), (2, 5), (1, 5), (0, 5), (0, 6), (0, 7), (0, 8)]


@pytest.mark.parametrize("eos", [False, True])
def test_who_is_behind_does_not_stop_a_jump(eos: bool) -> None:
    scheduler = Scheduler(Pages(), 4, 8)  # type: ignore[arg-type]
    scheduler.add(Job(request_id=0, prompt_len=1, max_new_tokens=9, may_stop_early=eos))
    for _ in range(4):
        scheduler.advance(scheduler.plan())
    scheduler.retract(0)
    scheduler.advance(scheduler.plan())  # the prompt again; then three tokens again, and five new ones
    scheduler.admission.stable_steps = lambda ids, steps, waits: steps  # type: ignore[method-assign]
    assert scheduler.stable_steps(scheduler.plan()) == (4 if eos else 8)
