"""The scheduler: who is admitted, which prompt chunks are computed, who decodes. No clock, no torch.

Continuous batching with chunked prefill: every step computes at most `prefill_chunk_tokens` prompt tokens,
oldest request first, and then one decode step for every request whose prompt is done. A prompt is cut at
multiples of `prefill_chunk_tokens`, whoever else runs, so that it is always computed in the same pieces.
Requests enter in arrival order; nobody overtakes a request that does not fit yet.
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
    prefilled: int = 0
    generated: int = 0

    @property
    def remaining(self) -> int:
        return self.max_new_tokens - self.generated


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens [start, start + length) of a request."""

    request_id: int
    start: int
    length: int
    is_last: bool  # its last token yields the first generated one


@dataclass(frozen=True, slots=True)
class Plan:
    """One engine step. `admitted` lists requests that entered with it, in order."""

    admitted: tuple[int, ...] = ()
    prefill: tuple[Chunk, ...] = ()
    decode: tuple[int, ...] = ()

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
        """Admit what fits and plan the next step; an empty plan when there is nothing to do."""
        admitted = self._admit()
        left = self.prefill_chunk_tokens
        chunks: list[Chunk] = []
        decode: list[int] = []
        for job in self._running.values():
            todo = job.prompt_len - job.prefilled
            if todo == 0:
                decode.append(job.request_id)
            elif (length := min(todo, self.prefill_chunk_tokens)) <= left:
                chunks.append(Chunk(job.request_id, job.prefilled, length, length == todo))
                left -= length
        return Plan(tuple(admitted), tuple(chunks), tuple(decode))

    def stable_steps(self, plan: Plan) -> int:
        """For how many steps `plan` certainly repeats: all decode, nobody enters, nobody ends before the last."""
        if plan.prefill or not plan.decode:
            return 1
        jobs = [self._running[i] for i in plan.decode]
        if any(job.may_stop_early for job in jobs):
            return 1
        return min(job.remaining for job in jobs)

    def advance(self, plan: Plan, steps: int = 1, finished: Iterable[int] = ()) -> list[int]:
        """Account for a plan that ran `steps` times; returns the requests that ended, their bytes released.

        finished: requests that ended early (EOS). Those that reach max_new_tokens end by themselves.
        """
        for chunk in plan.prefill:
            job = self._running[chunk.request_id]
            job.prefilled += chunk.length
            job.generated += chunk.is_last
        for request_id in plan.decode:
            self._running[request_id].generated += steps
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

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _admit(self) -> list[int]:
        admitted = []
        while self._waiting and len(self._running) < self.max_running_requests:
            job = next(iter(self._waiting.values()))
            if not self.admission.reserve(job.request_id, job.prompt_len, job.max_new_tokens):
                break
            del self._waiting[job.request_id]
            self._running[job.request_id] = job
            admitted.append(job.request_id)
        return admitted

    def _leave(self, request_id: int) -> None:
        del self._running[request_id]
        self.admission.release(request_id)
