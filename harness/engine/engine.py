"""The engine loop: one thread that plans, runs and delivers, fed by any number of others.

Callers submit a `Submission`; its `deliver` is called from the engine's thread with every token and with the
end. Nothing of torch is touched outside that thread.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness.engine.admission import make_admission
from harness.engine.executor import Executor, Generation, StepResult
from harness.engine.scheduler import Job, Plan, Scheduler
from harness.engine.selectors.recording import Recording, Spool
from harness.records import ServerStats
from harness.schema import Config

T = TypeVar("T")
FAILED = "the engine has failed; see the server's log"


class CannotServe(ValueError):
    """A request that could never run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Event:
    """A new token of a request, the reason it ended, or both."""

    request_id: int
    token: int | None
    finish_reason: str | None  # "stop" (EOS), "length", "error", or None while it goes on


@dataclass(kw_only=True, slots=True)
class Submission:
    prompt: list[int]
    max_new_tokens: int
    deliver: Callable[[list[Event]], None]
    """Called in the engine's thread once a step with all of this step's events of all submissions that share
    the same callable; must not raise."""
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False


class Engine:
    """Continuous batching over one executor. Thread-safe: `submit`, `cancel`, `stats`, `flush`, `stop`."""

    def __init__(self, config: Config, folder: Path | None, eos_ids: frozenset[int] = frozenset()):
        self._config = config
        self._eos_ids = eos_ids
        self._admission = make_admission(config)
        self._executor = Executor(config, folder)
        self._scheduler = Scheduler(
            self._admission,
            min(config.engine.max_running_requests, self._executor.kv.num_rows),
            config.engine.prefill_chunk_tokens,
        )
        self._live: dict[int, Submission] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._ids = itertools.count()
        self._totals = ServerStats(
            prefill_tokens=0, decode_tokens=0, prefill_seconds=0.0, decode_seconds=0.0, decode_steps=0, retractions=0
        )
        self._peaks = _no_peaks()
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run_once(self) -> bool:
        """Do here what the engine's thread would do next; False when there is nothing to do. For who drives an engine
        that was never started: tests, benchmarks."""
        assert not self._thread.is_alive(), "the engine has a thread of its own"
        if not (self._inbox or self._live):
            return False
        work = self._next_work()
        assert work is not None
        work()
        return True

    def stop(self) -> None:
        """End the loop after the step it is in; live requests get no further events."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, submission: Submission) -> int:
        """Queue a request and return its id. Raises CannotServe for one that could never run."""
        total = len(submission.prompt) + submission.max_new_tokens
        if not submission.prompt or submission.max_new_tokens < 1:
            raise CannotServe("a request needs at least one prompt token and one token to generate")
        if total > self._config.context_len:
            raise CannotServe(
                f"prompt of {len(submission.prompt)} tokens + {submission.max_new_tokens} to generate is longer "
                f"than the context of {self._config.context_len}"
            )
        refusal = self._admission.refusal(len(submission.prompt), submission.max_new_tokens)
        if refusal:
            raise CannotServe(refusal)
        request_id = next(self._ids)
        self._post(lambda: self._accept(request_id, submission))
        return request_id

    def cancel(self, request_id: int) -> None:
        """Drop a request at any stage and release its KV; unknown and ended ones are ignored."""
        self._post(lambda: self._drop(request_id))

    def retract(self, request_id: int) -> None:
        """Do to a running request what memory pressure does: its KV is released and it waits at the front of the
        queue; its stream goes on when it has been computed again. Ignored where it is not running."""
        self._post(lambda: self._retract(request_id))

    def stats(self) -> ServerStats:
        """Counters now; safe to call at any time."""
        kv, full = self._executor.kv.counters, self._config.offload.system.offloads
        totals, peaks = self._totals, self._peaks
        moved: dict[str, Any] = {f"{lane.value}_bytes": count for lane, count in kv.bytes_moved.items()}
        return ServerStats(
            prefill_tokens=totals.prefill_tokens,
            decode_tokens=totals.decode_tokens,
            prefill_seconds=totals.prefill_seconds,
            decode_seconds=totals.decode_seconds,
            decode_steps=totals.decode_steps,
            retractions=totals.retractions,
            lookups=kv.lookups if full else None,
            misses=kv.misses if full else None,
            h2d_bytes=kv.h2d_bytes,
            d2h_bytes=kv.d2h_bytes,
            **moved,
            exposed_io_seconds=kv.exposed_io_seconds if kv.timed else None,
            prefill_io_seconds=kv.prefill_io_seconds if kv.timed else None,
            peak_running=peaks.peak_running,
            device_kv_bytes=peaks.device_kv_bytes,
            device_records_bytes=peaks.device_records_bytes,
            device_state_bytes=peaks.device_state_bytes,
            device_metadata_bytes=peaks.device_metadata_bytes,
            host_kv_bytes=peaks.host_kv_bytes,
        )

    @property
    def context_len(self) -> int:
        return self._config.context_len

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    def flush(self, timeout_s: float = 10.0) -> str | None:
        """Check that an idle engine holds nothing and reset the peaks; None, or why it could not."""
        return self._between_steps(self._flush_now, timeout_s)

    def take_selections(self, timeout_s: float = 10.0) -> Spool | str:
        """What an idle engine recorded since the last flush (`trace.record`), to be closed; or why it could not."""
        return self._between_steps(self._take_selections_now, timeout_s)

    def _between_steps(self, work: Callable[[], T], timeout_s: float) -> T | str:
        """What `work` returns in the engine's thread, or why there is no answer."""
        answer: list[T] = []
        done = threading.Event()

        def run() -> None:
            try:
                answer.append(work())
            finally:
                done.set()

        self._post(run)
        if not done.wait(timeout_s):
            return "the engine did not answer in time"
        return answer[0] if answer else FAILED

    def _take_selections_now(self) -> Spool | str:
        selector = self._executor.selector
        if not isinstance(selector, Recording):
            return "selections are not recorded: start the server with trace.record=true"
        if self._live:
            return f"{len(self._live)} requests are in flight"
        return selector.take()

    def _flush_now(self) -> str | None:
        if self.failure:
            return FAILED
        if self._live:
            return f"{len(self._live)} requests are in flight"
        self._executor.kv.check_idle()
        assert self._admission.device_bytes == 0 and self._admission.host_bytes == 0, "reservations leaked"
        self._peaks = _no_peaks()
        if isinstance(self._executor.selector, Recording):
            self._executor.selector.take().close()
        return None

    def _post(self, work: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(work)
            self._wake.notify()

    def _run(self) -> None:
        while work := self._next_work():
            try:
                work()
            except Exception:
                self._fail(traceback.format_exc())

    def _next_work(self) -> Callable[[], None] | None:
        """What others posted, then a step while anyone is live; waits for either, None at the end."""
        with self._wake:
            while not self._stopping:
                if self._inbox:
                    return self._inbox.popleft()
                if self._live:
                    return self._step
                self._wake.wait()
        return None

    def _fail(self, reason: str) -> None:
        """No step can be trusted any more: end every request with an error, and all that are still to come.

        The thread goes on, to answer them.
        """
        self.failure = reason
        print(reason, flush=True)
        self._deliver([Event(i, None, "error") for i in self._live])
        self._live.clear()

    def _accept(self, request_id: int, submission: Submission) -> None:
        if self.failure:
            submission.deliver([Event(request_id, None, "error")])
            return
        self._live[request_id] = submission
        self._executor.add(
            request_id,
            Generation(
                tokens=list(submission.prompt),
                prompt_len=len(submission.prompt),
                max_new_tokens=submission.max_new_tokens,
                temperature=submission.temperature,
                seed=submission.seed,
            ),
        )
        self._scheduler.add(
            Job(
                request_id=request_id,
                prompt_len=len(submission.prompt),
                max_new_tokens=submission.max_new_tokens,
                may_stop_early=not submission.ignore_eos and bool(self._eos_ids),
            )
        )

    def _drop(self, request_id: int) -> None:
        if request_id in self._live:
            self._scheduler.cancel(request_id)
            self._executor.remove(request_id)
            del self._live[request_id]

    def _retract(self, request_id: int) -> None:
        if self._scheduler.retract(request_id):
            self._executor.retract(request_id)
            self._count(Plan(retracted=(request_id,)), StepResult())

    def _step(self) -> None:
        plan = self._scheduler.plan()
        assert plan, "requests are waiting, and none can run"
        self._note_peaks()
        result = self._executor.run(plan)
        self._count(plan, result)
        stopped = {i for i, token in result.tokens.items() if token in self._eos_ids and not self._live[i].ignore_eos}
        ended = set(self._scheduler.advance(plan, finished=stopped))
        events = []
        for request_id, token in result.tokens.items():
            reason = "stop" if request_id in stopped else "length" if request_id in ended else None
            events.append(Event(request_id, token, reason))
        self._deliver(events)
        for request_id in ended:
            self._executor.remove(request_id)
            del self._live[request_id]

    def _deliver(self, events: list[Event]) -> None:
        by_receiver: dict[Callable[[list[Event]], None], list[Event]] = {}
        for event in events:
            by_receiver.setdefault(self._live[event.request_id].deliver, []).append(event)
        for deliver, batch in by_receiver.items():
            deliver(batch)

    def _note_peaks(self) -> None:
        now = (self._scheduler.num_running, self._admission.device_bytes, self._admission.host_bytes)
        peaks = self._peaks
        before = (peaks.peak_running or 0, peaks.device_kv_bytes or 0, peaks.host_kv_bytes or 0)
        if now[1] > before[1]:
            parts = self._admission.reserved()
            peaks.device_records_bytes = parts.records
            peaks.device_state_bytes, peaks.device_metadata_bytes = parts.selection_state, parts.metadata
        peaks.peak_running, peaks.device_kv_bytes, peaks.host_kv_bytes = map(max, now, before)

    def _count(self, plan: Plan, result: StepResult) -> None:
        totals: Any = self._totals
        totals.prefill_tokens += result.prefill_tokens
        totals.prefill_seconds += result.prefill_seconds
        totals.retractions += len(plan.retracted)
        if plan.decode:
            totals.decode_steps += 1
            totals.decode_tokens += len(result.tokens.keys() & set(plan.decode))  # not those computed again
            totals.decode_seconds += result.decode_seconds


def _no_peaks() -> ServerStats:
    nothing: dict[str, Any] = dict.fromkeys(ServerStats.PEAKS, 0)
    return ServerStats(**nothing)


def wait_until_ready(engine: Engine) -> float:
    """Run a short request, so that the first real one pays for no lazy start; returns the seconds it took."""
    begin, done = time.perf_counter(), threading.Event()

    def deliver(events: list[Event]) -> None:
        if events[-1].finish_reason:
            done.set()

    tokens = min(2, max(1, engine.context_len - 1))  # prefill, and a decode step where there is room for one
    engine.submit(Submission(prompt=[0], max_new_tokens=tokens, deliver=deliver, ignore_eos=True))
    done.wait()
    if engine.failure:
        raise RuntimeError(engine.failure)
    return time.perf_counter() - begin
