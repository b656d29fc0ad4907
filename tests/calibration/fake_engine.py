"""An engine of known costs on a clock of its own: the real scheduler over an executor that only lets time pass."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from harness.engine.admission import make_admission
from harness.engine.executor import StepResult
from harness.engine.kv.lanes import Lane
from harness.engine.scheduler import Job, Plan, Scheduler
from harness.records import ServerStats
from harness.schema import Config

STEP, REQUEST, POSITION = 5e-3, 4e-4, 2e-7
CHUNK, TOKEN, PREFIX, PAIR, PROMPT = 2e-3, 9e-5, 4e-6, 3e-8, 1.5e-3
FETCH, RECORD = 3e-5, 5e-7
RECORDS = 7  # fetched in each of the two layers by every request, a step


@dataclass
class Clock:
    now: float = 0.0
    slowness: float = 1.0

    def perf_counter(self) -> float:
        return self.now


class FakeEngine:
    """What `harness.calibration.engine_steps.Stepper` uses of an engine."""

    clock = Clock()

    def __init__(self, config: Config, folder: None):
        self.failure = None
        self._fetches = config.offload.system.fetches
        self._scheduler = Scheduler(
            make_admission(config), config.engine.max_running_requests, config.engine.prefill_chunk_tokens
        )
        self._jobs: dict[int, Job] = {}
        self._dropped: list[int] = []
        self._prefilled = self._moved = 0
        footprint = SimpleNamespace(record_bytes=640)
        self._executor = SimpleNamespace(run=self._run, kv=SimpleNamespace(footprint=footprint), _requests=self._jobs)
        if self._fetches:
            self._executor.kv._submit = self._submit

    def submit(self, submission: Any) -> int:
        number = len(self._jobs)
        job = Job(request_id=number, prompt_len=len(submission.prompt), max_new_tokens=submission.max_new_tokens)
        self._jobs[number] = job
        self._scheduler.add(job)
        return number

    def cancel(self, number: int) -> None:
        self._dropped.append(number)

    def stats(self) -> ServerStats:
        return ServerStats(prefill_tokens=self._prefilled, demand_bytes=self._moved * 640)

    def run_once(self) -> bool:
        if self._dropped:
            return self._scheduler.cancel(self._dropped.pop())
        plan = self._scheduler.plan()
        if plan:
            self._executor.run(plan)
            self._scheduler.advance(plan)
        return bool(plan)

    def _submit(self, lane: Lane, records: int) -> None:
        self._moved += records

    def _run(self, plan: Plan) -> StepResult:
        result = StepResult()
        for c in plan.prefill:
            end = c.start + c.length
            result.prefill_seconds += CHUNK + TOKEN * c.length + PREFIX * end + PAIR * c.length * end
            result.prefill_seconds += PROMPT * c.is_last
            self._prefilled += c.length
        if plan.decode:
            positions = sum(self._jobs[n].computed + 1 for n in plan.decode)
            result.decode_seconds = STEP + REQUEST * len(plan.decode) + POSITION * positions
            if self._fetches:
                for _ in range(2):
                    self._executor.kv._submit(Lane.demand, RECORDS * len(plan.decode))
                result.decode_seconds += 2 * (FETCH + RECORD * RECORDS * len(plan.decode))
        result.prefill_seconds *= self.clock.slowness
        result.decode_seconds *= self.clock.slowness
        self.clock.now += result.prefill_seconds + result.decode_seconds
        return result
