"""Serving instances: one protocol (`base`), one module per engine."""

from __future__ import annotations

from harness.instances.base import Instance, InstanceError, Place
from harness.instances.native import NativeInstance
from harness.schema import Config, EngineKind

__all__ = ["Instance", "InstanceError", "Place", "make_instance"]


def make_instance(config: Config) -> Instance:
    """The instance of `engine.kind`, not started."""
    return {EngineKind.native: NativeInstance}[config.engine.kind](config)
