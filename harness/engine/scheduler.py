"""The scheduler: who is admitted, who is retracted, which prompt chunks are computed, who decodes. No clock, no torch.

Continuous batching with chunked prefill: every step computes at most `prefill_chunk_tokens` prompt tokens,
oldest request first, and then one decode step for every request whose prompt is done. A prompt is cut at
multiples of `prefill_chunk_tokens`, whoever else runs, so that it is always computed in the same pieces.
Requests enter in arrival order; nobody overtakes a request that does not fit yet.

Where the admission rule lets reservations grow, memory can run out. Then the youngest requests are retracted: they
give back everything but their tokens and wait at the front of the queue. When one enters again its prompt is
computed in the same pieces as before and its generated tokens one decode step each, fed and not sampled, so that
its KV gets the same bits and its stream goes on where it was. (Prefilling prompt and output together would be
faster, but a sparse decode step attends to other positions than prefill: the text would change.) The oldest
request is never retracted for another, so that something always ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.engine.admission import Admission


@dataclass(kw_only=True, slots=True)
class Job:
    """A request as the scheduler sees it: lengths only."""

    request_id: int
    prompt_len: int
    max_new_tokens: int
    may_stop_early: bool = False  # EOS may end it before max_new_tokens
    computed: int = 0  # tokens that have KV
    generated: int = 0  # tokens the client has

    @property
    def remaining(self) -> int:
        return self.max_new_tokens - self.generated

    @property
    def in_prefill(self) -> bool:
        return self.computed < self.prompt_len

    @property
    def behind(self) -> int:
        """Of a job that decodes: steps that only compute again what a retraction threw away."""
        return self.prompt_len + self.generated - 1 - self.computed


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens [start, start + length) of a request."""

    request_id: int
    start: int
    length: int
    is_last: bool  # its last token yields the first generated one


@dataclass(frozen=True, slots=True)
class Plan:
    """One engine step. First `retracted` requests give their KV back, then `admitted` ones enter, each in order."""

    admitted: tuple[int, ...] = ()
    prefill: tuple[Chunk, ...] = ()
    decode: tuple[int, ...] = ()
    retracted: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prefill or self.decode)


@dataclass(slots=True)
class Scheduler:
    admission: Admission
    max_running_requests: int
    prefill_chunk_tokens: int
    _waiting: OrderedDict[int, Job] = field(default_factory=OrderedDict)  # by arrival; thousands may be dropped
    _running: dict[int, Job] = field(default_factory=dict)  # in order of admission

    def add(self, job: Job) -> None:
        """Queue a request. The caller has checked `admission.refusal`."""
        self._waiting[job.request_id] = job

    def plan(self) -> Plan:
        """Make room for the next step, admit what fits and plan it; an empty plan when there is nothing to do."""
        retracted = self._make_room()
        admitted = [] if retracted else self._admit()
        left = self.prefill_chunk_tokens
        chunks: list[Chunk] = []
        decode: list[int] = []
        for job in self._running.values():
            todo = job.prompt_len - job.computed
            if todo <= 0:
                decode.append(job.request_id)
            elif (length := min(todo, self.prefill_chunk_tokens)) <= left:
                chunks.append(Chunk(job.request_id, job.computed, length, length == todo))
                left -= length
        return Plan(tuple(admitted), tuple(chunks), tuple(decode), tuple(retracted))

    def stable_steps(self, plan: Plan) -> int:
        """For how many steps `plan` certainly repeats: all decode, nobody enters or is retracted, nobody ends before
        the last."""
        if plan.prefill or plan.retracted or not plan.decode:  # after a retraction, admission comes a step later
            return 1
        jobs = [self._running[i] for i in plan.decode]
        steps = min(job.behind + (1 if job.may_stop_early else job.remaining) for job in jobs)
        someone_waits = bool(self._waiting) and len(self._running) < self.max_running_requests
        return self.admission.stable_steps(plan.decode, steps, someone_waits)

    def advance(self, plan: Plan, steps: int = 1, finished: Iterable[int] = ()) -> list[int]:
        """Account for a plan that ran `steps` times; returns the requests that ended, their bytes released.

        finished: requests that ended early (EOS). Those that reach max_new_tokens end by themselves.
        """
        for chunk in plan.prefill:
            job = self._running[chunk.request_id]
            job.computed += chunk.length
            if chunk.is_last:
                job.generated = max(job.generated, 1)
        for request_id in plan.decode:
            job = self._running[request_id]
            job.computed += steps
            job.generated = max(job.generated, job.computed - job.prompt_len + 1)
            grown = self.admission.grow(request_id, job.computed)
            assert grown, "stable_steps promised room for this"
        if plan.decode:
            self.admission.stepped(steps)
        early = set(finished)
        touched = [*(c.request_id for c in plan.prefill if c.is_last), *plan.decode]
        ended = [i for i in touched if i in early or self._running[i].remaining <= 0]
        for request_id in ended:
            self._leave(request_id)
        return ended

    def cancel(self, request_id: int) -> bool:
        """Drop a request wherever it is. Returns whether it was running (and held KV)."""
        if request_id in self._running:
            self._leave(request_id)
            return True
        self._waiting.pop(request_id, None)
        return False

    def retract(self, request_id: int) -> bool:
        """Send a running request back to the front of the queue; False where it is not running."""
        job = self._running.get(request_id)
        if job is None:
            return False
        self._leave(request_id)
        job.computed = 0
        self._waiting[request_id] = job
        self._waiting.move_to_end(request_id, last=False)
        return True

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_requests(self) -> int:
        """Waiting or running."""
        return len(self._waiting) + len(self._running)

    def _make_room(self) -> list[int]:
        """Reserve every decoding request's next position, oldest first, at the cost of the youngest."""
        retracted: list[int] = []
        for job in list(self._running.values()):
            while job.request_id in self._running and not job.in_prefill:
                if self.admission.grow(job.request_id, job.computed + 1):
                    break
                assert len(self._running) > 1, "a request that was not refused does not fit alone"
                youngest = next(reversed(self._running))
                self.retract(youngest)
                retracted.append(youngest)
        if retracted:
            self.admission.retracted()
        return retracted

    def _admit(self) -> list[int]:
        admitted = []
        while self._waiting and len(self._running) < self.max_running_requests:
            job = next(iter(self._waiting.values()))
            if not self.admission.reserve(job.request_id, job.prompt_len + job.generated, job.remaining):
                break
            del self._waiting[job.request_id]
            self._running[job.request_id] = job
            admitted.append(job.request_id)
        return admitted

    def _leave(self, request_id: int) -> None:
        del self._running[request_id]
        self.admission.release(request_id)
