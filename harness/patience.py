"""How long a sweep waits, and how often it tries again: deadlines, retries with back-off, the budget of the whole.

The clock and the waiting are parameters; nothing here knows Ray. A sweep's threads share one `Patience`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.schema import ClusterConfig

LONGEST_PAUSE_S = 300.0

Check = Callable[[], None]
"""Called now and then while something is waited for; raises `OutOfTime` or `Stopped`."""


class Stopped(Exception):
    """The sweep is ending: whoever waits gives up without a row."""


class OutOfTime(RuntimeError):
    """A point or a whole cell took longer than the config allows. The message is one line."""

    def __init__(self, message: str, *, whole_cell: bool):
        super().__init__(message)
        self.whole_cell = whole_cell


def may_pass(error: BaseException) -> bool:
    """Whether what failed may well succeed when it is tried again, the same as before."""
    return bool(getattr(error, "may_pass", False))


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the patience's clock; None: never."""

    at_s: float | None
    key: str
    seconds: float | None
    whole_cell: bool


@dataclass(slots=True)
class Tries:
    """What one point has been through so far."""

    most: int
    failures: list[str] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Of the try that is going on, from 1."""
        return len(self.failures) + 1

    def again(self, error: BaseException) -> bool:
        """Note a failure that may pass; whether to try again. Any other failure is final."""
        if not may_pass(error) or self.number >= self.most:
            return False
        self.failures.append(str(error))
        return True

    def note(self, error: BaseException) -> str:
        """The reason of the row, where the last failure was final."""
        return str(error) if not self.failures else f"{error} (try {self.number} of {self.most})"


class Patience:
    """`cluster.*_timeout_s`, `cluster.retries` and `cluster.budget_s` of one run, from the moment this is made."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ):
        self._config, self._now = config, now
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait  # cut short by `stop`
        self._began = now()

    def stop(self) -> None:
        """Have every thread that waits here, or checks, raise Stopped."""
        self._stop.set()

    @property
    def spent(self) -> bool:
        """Whether the budget is used up, or the sweep is ending: nothing new is to be started."""
        budget = self._config.budget_s
        return self._stop.is_set() or (budget is not None and self._now() - self._began >= budget)

    def tries(self) -> Tries:
        return Tries(self._config.retries + 1)

    def cell(self) -> Deadline:
        return self._deadline("cluster.cell_timeout_s", self._config.cell_timeout_s, whole_cell=True)

    def point(self) -> Deadline:
        return self._deadline("cluster.point_timeout_s", self._config.point_timeout_s, whole_cell=False)

    def check(self, *deadlines: Deadline) -> None:
        """Raises Stopped, or OutOfTime for the first of the deadlines that is past."""
        if self._stop.is_set():
            raise Stopped
        for deadline in deadlines:
            if deadline.at_s is not None and self._now() >= deadline.at_s:
                what = "the cell" if deadline.whole_cell else "the point"
                raise OutOfTime(
                    f"{what} took longer than {deadline.key}={deadline.seconds:g}", whole_cell=deadline.whole_cell
                )

    def until(self, *deadlines: Deadline) -> Check:
        return lambda: self.check(*deadlines)

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row (at least 1): twice as long each time, up to a limit."""
        return float(min(self._config.retry_wait_s * 2 ** (failures - 1), LONGEST_PAUSE_S))

    def pause(self, failures: int) -> None:
        """Wait that long. Raises Stopped."""
        self._wait(self.pause_s(failures))
        self.check()

    def _deadline(self, key: str, seconds: float | None, *, whole_cell: bool) -> Deadline:
        return Deadline(None if seconds is None else self._now() + seconds, key, seconds, whole_cell)
