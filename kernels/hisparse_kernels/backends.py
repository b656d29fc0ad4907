"""Which implementation runs: compiled where it builds, else the torch reference, which is then said once.

`$HISPARSE_KERNELS` or `use_backend`: `auto` (default), `reference`, or `shared` (the CPU runs the source it shares
with the GPU instead of its serial path; for tests).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from hisparse_kernels.build import BuildUnavailable, load

CHOICES = ("auto", "reference", "shared")
_SERIAL, _SHARED_THREADS = 0, 256


class Kernels(NamedTuple):
    """A loaded module, and how its CPU functions are to run."""

    module: Any
    block_threads: int


class _Choice:
    def __init__(self) -> None:
        self.name = os.environ.get("HISPARSE_KERNELS", "auto")
        if self.name not in CHOICES:
            raise ValueError(f"HISPARSE_KERNELS={self.name} is none of {', '.join(CHOICES)}")
        self.block_threads = _SHARED_THREADS
        self.module: Any = None  # of the CPU, in place of the built one
        self.loaded: dict[str, Kernels | None] = {}


_choice = _Choice()


def backend(device: str | torch.device = "cpu") -> str:
    """What operations on that device run: `reference`, `cpu`, `cpu-shared` or `cuda`."""
    kind = torch.device(device).type
    if kernels_for(kind) is None:
        return "reference"
    return "cpu-shared" if kind == "cpu" and _choice.name == "shared" else kind


@contextmanager
def use_backend(name: str, *, block_threads: int = _SHARED_THREADS, module: Any = None) -> Iterator[None]:
    """Run with that choice inside the context.

    block_threads: of the shared source's blocks, a multiple of 32; module: a CPU module to use in place of the built
    one (`build.load` with other macros).
    """
    if name not in CHOICES:
        raise ValueError(f"{name} is none of {', '.join(CHOICES)}")
    if block_threads % 32 or not 32 <= block_threads <= 1024:
        raise ValueError(f"block_threads={block_threads} is not a multiple of 32 up to 1024")
    before = _choice.name, _choice.block_threads, _choice.module, _choice.loaded
    _choice.name, _choice.block_threads, _choice.module, _choice.loaded = name, block_threads, module, {}
    try:
        yield
    finally:
        _choice.name, _choice.block_threads, _choice.module, _choice.loaded = before


def kernels_for(device_type: str) -> Kernels | None:
    """The compiled kernels for that kind of device; None where the reference runs."""
    try:
        return _choice.loaded[device_type]
    except KeyError:
        found = _choice.loaded[device_type] = _find(device_type)
        return found


def _find(device_type: str) -> Kernels | None:
    if _choice.name == "reference" or device_type not in ("cpu", "cuda"):
        return None
    threads = _choice.block_threads if _choice.name == "shared" else _SERIAL
    if device_type == "cpu" and _choice.module is not None:
        return Kernels(_choice.module, threads)
    try:
        return Kernels(load(device_type), threads)
    except BuildUnavailable as error:
        if _choice.name == "shared":
            raise
        _say_once(f"hisparse_kernels runs its torch reference on {device_type}, many times slower: {error}")
        return None


_said: set[str] = set()


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)
