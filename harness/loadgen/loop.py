"""The event loop a load generator runs on, whatever the process around it prefers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_on_own_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on asyncio's own loop. Ray's workers install uvloop, whose timers count whole milliseconds."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(main)
