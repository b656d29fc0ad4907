"""What the command line and a grid may say: groups and their choices, keys and the values they take.

Refusals are ConfigError, one line each, made before Hydra composes anything: its own messages name no choices.
"""

from __future__ import annotations

import difflib
import enum
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.schema import Config
from harness.validate import ConfigError

GROUPS = (
    "model",
    "selector",
    "platform",
    "offload",
    "engine",
    "workload",
    "cluster",
    "tracker",
    "experiment",
)
_IN_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    types.NoneType: "null",
    list[int]: "a list of whole numbers, such as [1, 2]",
    list[str]: "a list of texts, such as [a, b]",
}


def config_dir() -> Path:
    """`conf/`: beside the package in a checkout, inside it in an installed wheel."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "conf", here.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"no conf/ folder beside or inside {here}: reinstall the package")


def choices(group: str, extra_dir: Path | None = None) -> list[str]:
    """Names a group offers, in `conf/` and in the user's own --config-dir."""
    folders = [config_dir() / group] + ([extra_dir / group] if extra_dir else [])
    return sorted({p.stem for folder in folders if folder.is_dir() for p in folder.glob("*.yaml")})


def check_folder(extra_dir: Path) -> None:
    """Raise ConfigError where a user's folder has a name that `conf/` has: only one of the two would be read."""
    for group in GROUPS:
        twice = sorted({p.stem for p in (extra_dir / group).glob("*.yaml")} & set(choices(group)))
        if twice:
            raise ConfigError(f"{extra_dir / group / twice[0]}.yaml: {group}={twice[0]} exists already; rename yours")


PACKAGE_HEADER = "# @package _global_"


def check_header(file: Path) -> None:
    """Raise ConfigError for a user's experiment whose keys Hydra would put below `experiment.`"""
    if file.is_file() and not file.read_text(encoding="utf-8").lstrip().startswith(PACKAGE_HEADER):
        raise ConfigError(f"{file} must begin with the line {PACKAGE_HEADER}")


def as_override(value: Any) -> str:
    """A value of a YAML file as the right side of an override that means the same."""
    if isinstance(value, list):
        return "[" + ",".join(map(as_override, value)) + "]"
    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def check_override(override: Override, extra_dir: Path | None) -> None:
    """Raise ConfigError for an unknown key or a value that the key cannot take, naming the valid ones."""
    key = override.key_or_group
    if key.startswith("hydra.") or key == "hydra":
        raise ConfigError(f"{key}: Hydra's own settings are not used here; see python -m harness --help")
    if override.is_delete() or override.is_add() or override.package is not None:
        raise ConfigError(f"{override.input_line}: keys cannot be added, deleted or moved; write {key}=VALUE")
    if key.split(".")[0] == "grid":
        raise ConfigError(f"{key}: the grid belongs in an experiment's file; here KEY=a,b makes an axis")
    for value in _values(override):
        if key in GROUPS:
            if str(value) not in choices(key, extra_dir):
                raise ConfigError(
                    f"{key}={_shown(value)}: no such {key}; choose from {', '.join(choices(key, extra_dir))}"
                )
        else:
            _check_value(key, value)


def describe_values(key: str, extra_dir: Path | None) -> str:
    """What an existing key or group may be, in words."""
    if key in GROUPS:
        return f"one of {', '.join(choices(key, extra_dir))}"
    owner, name = find_key(key)
    return _describe(typing.get_type_hints(owner)[name])


def _values(override: Override) -> list[Any]:
    if not override.is_sweep_override():
        return [override.value()]
    parse = OverridesParser.create().parse_override
    return [parse(f"{override.key_or_group}={text}").value() for text in override.sweep_string_iterator()]


def _check_value(key: str, value: Any) -> None:
    owner, name = find_key(key)
    hint = typing.get_type_hints(owner)[name]
    if is_dataclass(hint):
        below = ", ".join(f"{key}.{f.name}" for f in fields(hint))
        raise ConfigError(f"{key}={_shown(value)}: {key} has keys of its own, set one of them: {below}")
    try:
        OmegaConf.structured(owner)[name] = value
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}={_shown(value)} must be {_describe(hint)}") from error


def find_key(key: str) -> tuple[type, str]:
    """The dataclass a dotted key lies in and its name there. Raises ConfigError for an unknown key."""
    owner: Any = Config
    *parents, _ = parts = key.split(".")
    for depth, part in enumerate(parts):
        known = [f.name for f in fields(owner)] if is_dataclass(owner) else []
        if part not in known:
            if depth == 0:
                known.append("experiment")
            above = ".".join(parts[:depth])
            close = difflib.get_close_matches(part, known, n=1)
            hint = f"did you mean {'.'.join([*parts[:depth], close[0]])}? " if close else ""
            have = f"{above or 'the config'} has {', '.join(known) or 'no keys below it'}"
            raise ConfigError(f"unknown key {key}: {hint}{have}")
        if depth < len(parents):
            owner = typing.get_type_hints(owner)[part]
    return owner, parts[-1]


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(_describe, typing.get_args(hint)))
    if isinstance(hint, enum.EnumMeta):
        return f"one of {', '.join(hint.__members__)}"
    return _IN_WORDS[hint]


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
