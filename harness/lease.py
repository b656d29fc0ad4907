"""Something that is opened when it is first needed, and opened anew after it was given up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Lease(Generic[T]):
    """`with Lease(open) as lease: lease.get()...`; what is open at the end is closed."""

    def __init__(self, open_one: Callable[[], AbstractContextManager[T]]):
        self._open_one = open_one
        self._stack = ExitStack()
        self._held: list[T] = []

    def get(self) -> T:
        """The open one, else a new one."""
        if not self._held:
            self._held.append(self._stack.enter_context(self._open_one()))
        return self._held[0]

    def drop(self) -> None:
        """Close it; the next `get` opens another."""
        self._held.clear()
        self._stack.close()

    def __enter__(self) -> Lease[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()
