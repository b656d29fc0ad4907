"""Composing the config: Hydra groups and overrides -> a grid of validated cells.

Hydra's `compose` is called once per cell, so that each cell of the grid is a config of its own. All
refusals are ConfigError: one line that names the key, what is wrong and what would be right.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from harness.identity import defines_cell
from harness.overrides import (
    GROUPS,
    as_override,
    check_folder,
    check_header,
    check_override,
    choices,
    config_dir,
    describe_values,
    find_key,
)
from harness.schema import Config
from harness.validate import ConfigError, complete

ConfigStore.instance().store(name="schema", node=Config)


def load_cells(overrides: list[str], extra_dir: Path | None = None) -> list[Config]:
    """All cells of the grid that the command line asks for, completed and validated, without duplicates.

    An override on a grid axis replaces that axis; `key=a,b` makes or replaces an axis of several values. Of two
    overrides of one key the later counts.
    """
    if extra_dir:
        check_folder(extra_dir)
    given = {override.key_or_group: override for override in map(_parse, overrides)}
    for override in given.values():
        check_override(override, extra_dir)
    experiment = given.get("experiment")
    if experiment is None:
        raise ConfigError(f"experiment=NAME is required; choose from {', '.join(choices('experiment', extra_dir))}")
    axes = {key: list(o.sweep_string_iterator()) for key, o in given.items() if o.is_sweep_override()}
    for key in axes:
        _check_axis(key, extra_dir)
    if extra_dir:
        check_header(extra_dir / "experiment" / f"{experiment.value()}.yaml")
    plain = {key: o.input_line or "" for key, o in given.items() if key not in axes}
    plain.setdefault("name", f"name={experiment.value()}")
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="harness"):
            return list(_expand(plain, axes, extra_dir))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error)) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{mark.name} line {mark.line + 1}" if mark else "a config file"
        raise ConfigError(f"{where} is not YAML: {error.problem}") from error


def _expand(plain: dict[str, str], axes: dict[str, list[str]], extra_dir: Path | None) -> Iterator[Config]:
    """plain: key -> override; axes: key -> values as overrides write them. Both outrank the experiment's grid."""
    fixed = list(plain.values())
    base = _compose(fixed, extra_dir)
    composed: dict[tuple[str, ...], DictConfig] = {(): base}  # by the groups that a cell chooses
    seen: set[str] = set()
    for grid in _grids(base.grid):
        own = {key: _axis_values(key, values, extra_dir) for key, values in grid.items()}
        merged = {key: texts for key, texts in own.items() if key not in plain} | axes
        for combination in itertools.product(*merged.values()):
            cell = dict(zip(merged, combination, strict=True))
            chosen = tuple(f"{key}={value}" for key, value in cell.items() if key in GROUPS)
            if chosen not in composed:
                composed[chosen] = _compose([*fixed, *chosen], extra_dir)
            keys = {key: value for key, value in cell.items() if key not in GROUPS}
            config = complete(_to_object(_with_values(composed[chosen], keys)))
            text = repr(config)
            if text not in seen:  # an axis that a system ignores (B for full_kv) gives the same cell twice
                seen.add(text)
                yield config


def _axis_values(key: str, values: list[Any], extra_dir: Path | None) -> list[str]:
    """An axis of an experiment's grid, checked, in the form that overrides have."""
    texts = [as_override(value) for value in values]
    for text in texts:
        check_override(_parse(f"{key}={text}"), extra_dir)
    _check_axis(key, extra_dir)
    return texts


def _with_values(config: DictConfig, values: dict[str, str]) -> DictConfig:
    """A copy with keys set as overrides set them. Composing a cell anew would take Hydra a tenth of a second."""
    copied = copy.deepcopy(config)
    for key, text in values.items():
        OmegaConf.update(copied, key, _parse(f"{key}={text}").value(), merge=False)
    return copied


def _compose(overrides: list[str], extra_dir: Path | None) -> DictConfig:
    search = [f"hydra.searchpath={as_override([f'file://{extra_dir}'])}"] if extra_dir else []
    return compose(config_name="config", overrides=overrides + search)


def _to_object(config: DictConfig) -> Config:
    try:
        result = OmegaConf.to_object(config)
    except MissingMandatoryValue as error:  # asking for all missing keys first would take a quarter of the time
        missing = sorted(OmegaConf.missing_keys(config))[0]
        raise ConfigError(f"{missing} must be set: add {missing}=VALUE") from error
    assert isinstance(result, Config)
    return result


def _grids(grid: Any) -> list[dict[str, list[Any]]]:
    """The config's `grid` as a list of axis -> values mappings (one empty mapping when there is no grid)."""
    plain: Any = (OmegaConf.to_container(grid) if OmegaConf.is_config(grid) else grid) or {}
    parts: list[Any] = plain if isinstance(plain, list) else [plain]
    for part in parts:
        if not isinstance(part, dict):
            raise ConfigError(f"grid must map axes to lists of values, not {part!r}")
        for key, values in part.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(f"grid.{key!s} must be a list of values, such as [a, b], not {values!r}")
    return parts


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(f"cannot read {text!r}: write KEY=VALUE, such as experiment=quickstart") from error


def _check_axis(key: str, extra_dir: Path | None) -> None:
    """Refuse to vary what does not tell cells apart: their rows would overwrite one another."""
    if not defines_cell(key):
        raise ConfigError(f"{key} takes one value for all cells, {describe_values(key, extra_dir)}")


def _one_line(error: Exception) -> str:
    """The innermost cause of Hydra's and OmegaConf's multi-line messages, with the key it is about.

    A key that a file has and the schema has not is said as on the command line.
    """
    innermost: BaseException = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    lines = [line.strip() for line in str(innermost).splitlines() if line.strip()]
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key")), "")
    if key:
        try:
            find_key(key)
        except ConfigError as unknown:
            return str(unknown)
    detail = lines[0] if lines else type(innermost).__name__
    return f"{key}: {detail}" if key and key not in detail else detail
