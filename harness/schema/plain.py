"""A config as text and as plain values, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import yaml
from omegaconf import OmegaConf

from harness.schema.config import Config


def to_yaml(config: Config) -> str:
    """A completed config as text; `from_yaml` reads it back."""
    return str(yaml.dump(to_plain(config), Dumper=_Dumper, allow_unicode=True, sort_keys=False))


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # one of two classes
    """Quotes every string that begins like a number: OmegaConf reads more of them as numbers than PyYAML."""


def _represent_str(dumper: Any, text: str) -> yaml.ScalarNode:
    number_like = text[:1] in set("0123456789+-.")
    node = dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if number_like else None)
    assert isinstance(node, yaml.ScalarNode)
    return node


_Dumper.add_representer(str, _represent_str)


def from_yaml(text: str) -> Config:
    """Raises OmegaConf's errors for unknown keys and wrong types."""
    merged = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(text)))
    assert isinstance(merged, Config)
    return merged


def to_plain(config: Config) -> dict[str, Any]:
    """A completed config as nested plain values, enums by name: for JSON, trackers and hashes.

    What OmegaConf.to_container makes of it, a hundred times as fast: a sweep asks several times a cell.
    """
    plain = _plain(config)
    assert isinstance(plain, dict)
    return plain


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        plain = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        whole = [f.name for f in fields(value) if str(f.type).startswith("float") and type(plain[f.name]) is int]
        return plain | {name: float(plain[name]) for name in whole}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
