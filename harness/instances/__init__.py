"""Serving instances: one protocol (`base`), one module per engine."""

from __future__ import annotations

from collections.abc import Callable

from harness.instances.base import Instance, InstanceError, Place
from harness.instances.external import ExternalInstance
from harness.instances.native import NativeInstance
from harness.instances.sglang import SGLangInstance
from harness.schema import Config, EngineKind

__all__ = ["Instance", "InstanceError", "Place", "make_instance"]


def make_instance(config: Config) -> Instance:
    """The instance of `engine.kind`, not started."""
    kinds: dict[EngineKind, Callable[[Config], Instance]] = {
        EngineKind.native: NativeInstance,
        EngineKind.sglang: SGLangInstance,
        EngineKind.external: ExternalInstance,
    }
    return kinds[config.engine.kind](config)
