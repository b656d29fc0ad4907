"""Processes that must not outlive this one, even when it is killed and can clean up nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# `read` returns when this process's end of the pipe closes, however it ended.
_SCRIPT = 'read -r _; kill -KILL "$@"'


@contextmanager
def killed_with_us(pids: Sequence[int]) -> Iterator[None]:
    """While the body runs, the death of this process is followed by SIGKILL to those with the given numbers.

    Only for processes that live as long as the body: numbers of ended ones are given to others.
    """
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _SCRIPT, "guard", *map(str, pids)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.kill()
        guard.wait()
        assert guard.stdin is not None
        guard.stdin.close()
