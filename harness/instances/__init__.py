"""Serving instances: one protocol (`base`), one module per engine."""

from __future__ import annotations

from harness.instances.base import Instance, InstanceError, Place
from harness.instances.native import NativeInstance
from harness.schema import Config, EngineKind

__all__ = ["Instance", "InstanceError", "Place", "make_instance", "nodes_of"]


def nodes_of(config: Config) -> int:
    """Nodes that an instance of this cell spans, `platform.num_devices` devices on each: one `Instance` a node."""
    engine, devices = config.engine, config.platform.num_devices
    return -(-engine.devices // devices) if engine.kind is EngineKind.sglang else 1


def make_instance(config: Config) -> Instance:
    """The instance of `engine.kind`, not started."""
    return {EngineKind.native: NativeInstance}[config.engine.kind](config)
