"""Composing the config: Hydra groups and overrides -> a grid of validated cells.

Hydra's `compose` is called once per cell, so that each cell of the grid is a config of its own. All
refusals are ConfigError: one line that names the key, what is wrong and what would be right.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.schema import Config
from harness.validate import ConfigError, complete

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

ConfigStore.instance().store(name="schema", node=Config)


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


def load_cells(overrides: list[str], extra_dir: Path | None = None) -> list[Config]:
    """All cells of the grid that the command line asks for, completed and validated, without duplicates.

    An override on a grid axis replaces that axis; `key=a,b` makes or replaces an axis of several values.
    """
    parsed = [_parse(text) for text in overrides]
    for override in parsed:
        _check_override(override, extra_dir)
    names = [o for o in parsed if o.key_or_group == "experiment"]
    if not names:
        raise ConfigError(f"experiment=NAME is required; choose from {', '.join(choices('experiment', extra_dir))}")
    if names[0].is_sweep_override():
        raise ConfigError("experiment= takes one name; run the command once for each experiment")
    plain = [o.input_line or "" for o in parsed if not o.is_sweep_override()]
    if not any(o.key_or_group == "name" for o in parsed):
        plain.insert(0, f"name={names[0].value()}")
    axes = {o.key_or_group: list(o.sweep_string_iterator()) for o in parsed if o.is_sweep_override()}
    pinned = {o.key_or_group for o in parsed if not o.is_sweep_override()}
    try:
        with initialize_config_dir(str(extra_dir or config_dir()), version_base="1.3", job_name="harness"):
            return list(_expand(plain, axes, pinned, extra_dir))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error)) from error


def _expand(plain: list[str], axes: dict[str, list[str]], pinned: set[str], extra_dir: Path | None) -> Iterator[Config]:
    base = _compose(plain, extra_dir)
    seen: set[str] = set()
    for grid in _grids(base.grid):
        own = {k: v for k, v in grid.items() if k not in pinned and k not in axes}
        for key, values in own.items():
            for value in values:
                _check_override(_parse(f"{key}={_as_override(value)}"), extra_dir)
        merged = {k: [_as_override(v) for v in values] for k, values in own.items()} | axes
        for combination in itertools.product(*merged.values()):
            cell = [f"{key}={value}" for key, value in zip(merged, combination, strict=True)]
            config = complete(_to_object(_compose(plain + cell, extra_dir)))
            identity = OmegaConf.to_yaml(OmegaConf.structured(config))
            if identity not in seen:  # an axis that a system ignores (B for full_kv) gives the same cell twice
                seen.add(identity)
                yield config


def _compose(overrides: list[str], extra_dir: Path | None) -> DictConfig:
    search = [f"hydra.searchpath=[file://{config_dir()}]"] if extra_dir else []
    return compose(config_name="config", overrides=overrides + search)


def _to_object(config: DictConfig) -> Config:
    missing = OmegaConf.missing_keys(config)
    if missing:
        raise ConfigError(f"{sorted(missing)[0]} must be set: add {sorted(missing)[0]}=VALUE")
    result = OmegaConf.to_object(config)
    assert isinstance(result, Config)
    return result


def _grids(grid: Any) -> list[dict[str, list[Any]]]:
    """The config's `grid` as a list of axis -> values mappings (one empty mapping when there is no grid)."""
    plain: Any = OmegaConf.to_container(grid) if OmegaConf.is_config(grid) else grid
    parts: list[Any] = plain if isinstance(plain, list) else [plain or {}]
    for part in parts:
        if not isinstance(part, dict):
            raise ConfigError(f"grid must map axes to lists of values, not {part!r}")
        for key, values in part.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(f"grid.{key!s} must be a list of values, such as [a, b], not {values!r}")
    return parts


def _as_override(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(_as_override(v) for v in value) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(f"cannot read {text!r}: write KEY=VALUE, such as experiment=quickstart") from error


def _check_override(override: Override, extra_dir: Path | None) -> None:
    """Refuse an unknown key or an unknown choice with the valid ones named."""
    key = override.key_or_group
    if key.startswith("hydra.") or key == "hydra":
        raise ConfigError(f"{key}: Hydra's own settings are not used here; see python -m harness --help")
    if override.is_delete() or override.is_add():
        raise ConfigError(f"{override.input_line}: keys cannot be added or deleted; write {key}=VALUE")
    if key in GROUPS:
        names = choices(key, extra_dir)
        values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.value()]
        for value in values:
            if str(value) not in names:
                raise ConfigError(f"{key}={value}: no such {key}; choose from {', '.join(names)}")
    else:
        check_key(key)


def check_key(key: str) -> None:
    """Raise ConfigError unless the dotted key is a field of the schema."""
    node: Any = Config()
    done: list[str] = []
    for part in key.split("."):
        known = [f.name for f in fields(node)] if is_dataclass(node) else []
        if part not in known:
            close = difflib.get_close_matches(part, known, n=1)
            hint = f"did you mean {'.'.join([*done, close[0]])}? " if close else ""
            where = f"{'.'.join(done)} has" if done else "the config has"
            raise ConfigError(f"unknown key {key}: {hint}{where} {', '.join(known) or 'no keys below it'}")
        done.append(part)
        node = getattr(node, part)


def _one_line(error: Exception) -> str:
    """The innermost cause of Hydra's and OmegaConf's multi-line messages, with the key it is about."""
    innermost: BaseException = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    lines = [line.strip() for line in str(innermost).splitlines() if line.strip()]
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key")), "")
    detail = lines[0] if lines else type(innermost).__name__
    return f"{key}: {detail}" if key and key not in detail else detail
