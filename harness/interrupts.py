"""Ctrl-C, SIGTERM and SIGHUP: a KeyboardInterrupt where the work is, none in the middle of clean-up.

`interruptible()` goes around a program, `shielded()` around what must not be cut short, `deaf()` around what is said of
an interrupt. Signals come to the main thread only: in others a shield has nothing to do.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    armed: tuple[signal.Signals, ...] = ()
    shields = 0
    pending = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGNALS into KeyboardInterrupt in the body. One that is ignored already (`nohup`) stays ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _State.armed = tuple(number for number, handler in before.items() if handler is not signal.SIG_IGN)
    rearm()
    try:
        yield
    finally:
        for number in _State.armed:
            signal.signal(number, before[number])
        _State.armed, _State.pending = (), False


@contextmanager
def shielded() -> Iterator[None]:
    """Let the body end; a signal that came meanwhile is raised after the outermost shield."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.shields += 1
    try:
        yield
    finally:
        _State.shields -= 1
        rearm()
        if _State.pending and not _State.shields:
            _State.pending = False
            raise KeyboardInterrupt


@contextmanager
def deaf() -> Iterator[None]:
    """Signals that come during the body are lost: for the last words of a program that was interrupted."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def rearm() -> None:
    """Take the signals back from a library that installed handlers of its own (Ray does when it connects)."""
    for number in _State.armed:
        signal.signal(number, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _State.shields:
        _State.pending = True
    else:
        raise KeyboardInterrupt
