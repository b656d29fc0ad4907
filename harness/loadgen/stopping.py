"""Ending a run early and keeping what there is: a word from anywhere that the load generator hears."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Said once, from any thread or signal handler, to whoever listens then or later."""

    def __init__(self) -> None:
        self._hooks: list[Callable[[], object]] = []
        self.said = False

    def say(self) -> None:
        """Requests under way are to be given up, no more are to be sent."""
        self.said = True
        for hook in list(self._hooks):
            hook()

    @contextmanager
    def heard_by(self, hook: Callable[[], object]) -> Iterator[None]:
        """Call `hook` when it is said while the body runs; at once if it has been."""
        self._hooks.append(hook)
        try:
            if self.said:
                hook()
            yield
        finally:
            self._hooks.remove(hook)


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM says it, a second one ends as ever. Yields a list that then has the signal's number.

    For the main thread. A signal that is ignored already (`nohup`) stays ignored.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, frame: FrameType | None) -> None:
        restore()
        came.append(number)
        stop.say()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield came
    finally:
        restore()
