"""Drives one point: warm-up, closed loop, measures, verdict."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from harness.loadgen.bodies import request_body
from harness.loadgen.client import Client
from harness.loadgen.exchange import Exchange, digest
from harness.loadgen.metrics import Measures, measure
from harness.loadgen.pacing import Dispatch, LagMonitor, closed_loop
from harness.loadgen.progress import Progress
from harness.loadgen.verdict import judge_point
from harness.records import RequestRecord, Status
from harness.schema import LoadConfig
from workloads import Prompt

OnProgress = Callable[[Progress], None]

_REPORT_EVERY_S = 0.5
_SPARE_FILES = 64  # open files beside one connection per worker


@dataclass(kw_only=True, slots=True)
class PointLoad:
    """Everything one point needs, as plain data that can be sent to another process."""

    base_url: str  # http://host:port
    model: str  # the name the server knows it by
    prompts: list[Prompt]  # the measured requests, in order: N is their number
    warmup: list[Prompt] = field(default_factory=list)  # other prompts, sent and drained before
    concurrency: int  # C
    load: LoadConfig  # time limits, stagger and lag limit are read from it
    temperature: float = 0.0
    ignore_eos: bool = True

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url is {self.base_url!r}; it must start with http:// or https://")
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; it must be at least 1")
        if not self.prompts:
            raise ValueError("a point needs at least one request; raise load.num_requests")


@dataclass(kw_only=True, slots=True)
class PointResult:
    """What one point gave."""

    requests: list[RequestRecord]  # in the order they ended; empty when the warm-up failed
    measures: Measures  # every records.CLIENT_MEASURES
    status: Status
    reason: str | None  # why it is not ok
    count_source: str | None  # where token counts come from; "mixed" when requests differ


async def run_point(load: PointLoad, on_progress: OnProgress | None = None) -> PointResult:
    """Send the warm-up, then the measured requests in a closed loop, and judge what came back.

    on_progress: called from the event loop at the start, every half second and at the end, always
    with the same object; it must return quickly. What goes wrong on the wire is in the result;
    cancelling closes every connection. Raises ValueError when the process may not open enough files.
    """
    _allow_open_files(load.concurrency + _SPARE_FILES)
    progress = Progress(len(load.prompts))
    async with _reporting(progress, on_progress), Client(load.base_url, load.load, progress) as client:
        warmup = _Phase(load, client, progress)
        await warmup.run(load.warmup, prefix="warmup", stagger_s=0.0)
        if warmup.requests and all(request.error for request in warmup.requests):
            status, reason = warmup.verdict(lag_p99_ms=None)
            return _result([], status, f"warm-up: {reason}", lag_p99_ms=None)
        progress.start()
        measured = _Phase(load, client, progress)
        with _quiet_gc():
            async with LagMonitor() as lag:
                await measured.run(load.prompts, prefix="request", stagger_s=load.load.stagger_s)
        progress.stop()
    return _result(measured.requests, *measured.verdict(lag.p99_ms), lag.p99_ms)


class _Phase:
    """One list of prompts sent in a closed loop and drained."""

    def __init__(self, load: PointLoad, client: Client, progress: Progress) -> None:
        self._load, self._client, self._progress = load, client, progress
        self._ended: asyncio.Queue[Exchange | None] = asyncio.Queue()
        self.requests: list[RequestRecord] = []
        self._held_back = 0

    async def run(self, prompts: list[Prompt], *, prefix: str, stagger_s: float) -> None:
        load = self._load
        # Encoded before the clock starts: 200K ids take milliseconds that other streams would feel.
        bodies = [
            request_body(prompt, model=load.model, temperature=load.temperature, ignore_eos=load.ignore_eos)
            for prompt in prompts
        ]

        async def send(turn: Dispatch) -> float:
            exchange = Exchange(
                request_id=f"{prefix}-{turn.number:05d}",
                worker=turn.worker,
                prompt=prompts[turn.number],
                scheduled_s=turn.scheduled_s,
            )
            await self._client.send(bodies[turn.number], exchange)
            self._progress.done += 1
            self._ended.put_nowait(exchange)
            return exchange.end_s

        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._digest_all(start_s))
            await closed_loop(
                send, start_s=start_s, count=len(prompts), concurrency=load.concurrency, stagger_s=stagger_s
            )
            self._ended.put_nowait(None)

    async def _digest_all(self, start_s: float) -> None:
        """One response after the other, so that never more than one slice of parsing is ready to run."""
        while (exchange := await self._ended.get()) is not None:
            record, held_back = await digest(exchange, exact=self._load.ignore_eos, start_s=start_s)
            self.requests.append(record)
            self._held_back += held_back
            self._progress.failed += record.error is not None

    def verdict(self, lag_p99_ms: float | None) -> tuple[Status, str | None]:
        return judge_point(
            self.requests,
            held_back=self._held_back,
            lag_p99_ms=lag_p99_ms,
            max_lag_p99_ms=self._load.load.max_lag_p99_ms,
        )


def _result(requests: list[RequestRecord], status: Status, reason: str | None, lag_p99_ms: float | None) -> PointResult:
    sources = sorted({request.count_source for request in requests if request.count_source})
    return PointResult(
        requests=requests,
        measures=measure(requests) | {"lag_p99_ms": lag_p99_ms},
        status=status,
        reason=reason,
        count_source="mixed" if len(sources) > 1 else next(iter(sources), None),
    )


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
    """Keeps the collector away from what exists already: long prompts would cost it tens of milliseconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _allow_open_files(needed: int) -> None:
    """Raise this process's limit of open files to `needed`: one connection per worker is one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(f"the concurrency needs {needed} open files, the limit is {hard}; raise `ulimit -Hn`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
