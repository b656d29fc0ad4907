"""One job that goes on beside what its owner does next: a point is written while the next one is warmed up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from harness.interrupts import shielded


class WriteBehind:
    """Jobs in the order they were given, never two at a time. As a context manager it leaves none unfinished.

    What a job raises is raised where it is waited for: by `wait`, by the next `start`, or at the end of the body.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="write-behind")
        self._job: Future[None] | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job, once the one before it has ended."""
        self.wait()
        self._job = self._pool.submit(job)

    def wait(self) -> None:
        """Return when nothing is under way."""
        if self._job:
            self._job.result()
            self._job = None

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with shielded():
            self._pool.shutdown()
            job, self._job = self._job, None
            if job and job.exception() is not error:
                job.result()
