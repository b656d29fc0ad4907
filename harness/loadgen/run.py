"""Drives one point, or one process's share of it: warm-up, measured part, what came back."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from harness.loadgen.bodies import request_body
from harness.loadgen.client import Client
from harness.loadgen.exchange import Exchange, digest
from harness.loadgen.health import HealthMonitor
from harness.loadgen.pacing import Dispatch, Send, closed_loop, open_loop
from harness.loadgen.point import Driven, PointLoad, PointResult, conclude
from harness.loadgen.progress import Progress
from harness.loadgen.stopping import Stop
from harness.loadgen.verdict import judge_point
from harness.records import RequestRecord, Status
from workloads import Prompt

__all__ = ["OnProgress", "PointLoad", "PointResult", "drive", "run_point"]

OnProgress = Callable[[Progress], None]
Begin = Callable[[], Awaitable[float | None]]
"""For processes that start together. Awaited once all is prepared: the time.time() to start at, None to give up."""

_REPORT_EVERY_S = 0.5
_OBJECTS = 50_000  # made between two looks of the garbage collector
_PREPARE_S = 100e-6  # before the start, per worker, to have its first request ready by then
_SPARE_FILES = 64  # open files beside one connection per worker


async def run_point(load: PointLoad, on_progress: OnProgress | None = None, stop: Stop | None = None) -> PointResult:
    """Drive a point in this process alone and judge what came back; see `drive`."""
    return conclude(load, [await drive(load, on_progress, stop=stop)])


async def drive(
    load: PointLoad,
    on_progress: OnProgress | None = None,
    begin: Begin | None = None,
    stop: Stop | None = None,
) -> Driven:
    """Send the warm-up, then the measured requests as the pacing wants them, and keep what came back.

    on_progress: called from the event loop at the start, every half second and at the end, always
    with the same object; it must return quickly. What goes wrong on the wire is in the result;
    cancelling closes every connection; `stop` does so too, and what there is by then is the result.
    Raises ValueError when the process may not open enough files.
    """
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    with (stop or Stop()).heard_by(lambda: loop.call_soon_threadsafe(stopping.set)):
        return await _drive(load, on_progress, begin, stopping)


async def _drive(
    load: PointLoad, on_progress: OnProgress | None, begin: Begin | None, stopping: asyncio.Event
) -> Driven:
    _allow_open_files(load.concurrency + _SPARE_FILES)
    progress = Progress(len(load.prompts))
    connections = Client(load.base_url, load.load, progress, endpoint=load.endpoint, api_key=load.api_key)
    async with _reporting(progress, on_progress), connections as client:
        warmup = _Phase(load, client, progress, stopping)
        await warmup.run_warmup()
        if stopping.is_set():
            return _nothing(Status.FAILED, "interrupted before anything was measured")
        if warmup.requests and all(request.error for request in warmup.requests):
            status, reason = judge_point(warmup.requests, held_back=0, measures={}, limits=load.load)
            return _nothing(status, f"warm-up: {reason}")
        measured = _Phase(load, client, progress, stopping)
        bodies = measured.encode(load.prompts)
        await client.connect(min(load.concurrency, len(bodies)))
        ahead_s = _PREPARE_S * min(load.concurrency, len(bodies))
        begin_at_s = await begin() if begin else time.time() + ahead_s
        if begin_at_s is None:
            return _nothing(Status.FAILED, "another load-generator process could not start")
        now_s, now_at_s = time.perf_counter(), time.time()
        start_s = max(now_s, now_s + begin_at_s - now_at_s)
        await asyncio.sleep(start_s - ahead_s - now_s)
        progress.start()
        with _quiet_gc():
            async with HealthMonitor() as monitor:
                await measured.run(bodies, start_s)
        progress.stop()
    return Driven(
        requests=measured.requests,
        held_back=measured.held_back,
        health=monitor.health,
        started_at_s=now_at_s + start_s - now_s,
        stopped=stopping.is_set(),
        reader=client.reader,
    )


def _nothing(status: Status, reason: str) -> Driven:
    return Driven(requests=[], held_back=0, health=None, started_at_s=time.time(), gave_up=(status, reason))


class _Phase:
    """One list of prompts sent and drained: the warm-up, or the measured part."""

    def __init__(self, load: PointLoad, client: Client, progress: Progress, stopping: asyncio.Event) -> None:
        self._load, self._client, self._progress, self._stopping = load, client, progress, stopping
        self._ended: asyncio.Queue[Exchange | None] = asyncio.Queue()
        self.requests: list[RequestRecord] = []
        self.held_back = 0

    def encode(self, prompts: list[Prompt]) -> list[bytes]:
        """Request bodies, made before the clock starts: 200K ids take milliseconds that other streams would feel."""
        return [_encode(prompt, self._load) for prompt in prompts]

    async def run_warmup(self) -> None:
        prompts, start_s = self._load.warmup, time.perf_counter()
        send = self._sender("warmup", prompts, self.encode(prompts), range(len(prompts)))
        loop = closed_loop(send, start_s=start_s, count=len(prompts), concurrency=self._load.concurrency)
        await self._drain(loop, start_s)

    async def run(self, bodies: list[bytes], start_s: float) -> None:
        load = self._load
        numbers = range(len(bodies)) if load.numbers is None else load.numbers
        send = self._sender("request", load.prompts, bodies, numbers)
        if load.due_s is not None:
            loop = open_loop(send, start_s=start_s, due_s=load.due_s, limit=load.concurrency, worker=load.first_worker)
        else:
            loop = closed_loop(
                send,
                start_s=start_s,
                count=len(bodies),
                concurrency=load.concurrency,
                stagger_s=load.load.stagger_s,
                first_worker=load.first_worker,
                max_seconds=load.load.max_seconds,
            )
        await self._drain(loop, start_s)

    def _sender(self, prefix: str, prompts: list[Prompt], bodies: list[bytes], numbers: Sequence[int]) -> Send:
        async def send(turn: Dispatch) -> float:
            exchange = Exchange(
                request_id=f"{prefix}-{numbers[turn.number]:05d}",
                worker=turn.worker,
                prompt=prompts[turn.number],
                scheduled_s=turn.scheduled_s,
            )
            try:
                await self._client.send(bodies[turn.number], exchange)
            finally:
                if time.perf_counter() >= turn.scheduled_s:  # else it was given up before it was due
                    self._progress.done += 1
                    self._ended.put_nowait(exchange)
            return time.perf_counter()  # not its end: how long this process took to notice is no one's latency

        return send

    async def _drain(self, loop: Coroutine[None, None, None], start_s: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._digest_all(start_s))
            await _unless(self._stopping, loop)
            self._ended.put_nowait(None)

    async def _digest_all(self, start_s: float) -> None:
        """One response after the other, so that never more than one slice of parsing is ready to run."""
        while (exchange := await self._ended.get()) is not None:
            record, held_back = await digest(exchange, exact=self._load.ignore_eos, start_s=start_s)
            self.requests.append(record)
            self.held_back += held_back
            self._progress.failed += record.error is not None


async def _unless(stopping: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Do the work, or as much of it as is done when `stopping` is set."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()  # nothing, where it has ended
        waiting.cancel()
        await asyncio.wait((working, waiting))
    if not working.cancelled():
        working.result()


def _encode(prompt: Prompt, load: PointLoad) -> bytes:
    body = request_body(
        prompt,
        model=load.model,
        temperature=load.temperature,
        ignore_eos=load.ignore_eos,
        endpoint=load.endpoint,
    )
    return json.dumps(json.loads(body) | load.extra_body).encode() if load.extra_body else body


@asynccontextmanager
async def _reporting(progress: Progress, on_progress: OnProgress | None) -> AsyncIterator[None]:
    """Calls `on_progress` now and then while the body runs, and once when it has ended."""
    if on_progress is None:
        yield
        return

    async def report() -> None:
        while True:
            on_progress(progress)
            await asyncio.sleep(_REPORT_EVERY_S)

    reporter = asyncio.create_task(report())
    try:
        yield
    finally:
        reporter.cancel()
        await asyncio.wait([reporter])
    if not reporter.cancelled():
        reporter.result()  # the callback raised: say so
    on_progress(progress)


@contextmanager
def _quiet_gc() -> Iterator[None]:
    """Keeps the collector away from what exists already: long prompts would cost it tens of milliseconds.

    And from what comes, for a while: nearly all of it is kept.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _allow_open_files(needed: int) -> None:
    """Raise this process's limit of open files to `needed`: one connection per worker is one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(f"the concurrency needs {needed} open files, the limit is {hard}; raise `ulimit -Hn`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
