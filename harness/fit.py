"""Whether what lies in a results folder is what this run would measure there: stored configs against a cell's own.

A cell's id is a hash of its config, so a folder under that id that was measured with another config is an accident
(edited, copied, written by a harness that understood a key differently) and is refused, never mixed in. A cell that is
not there although a sister is gets told what sets them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from harness.identity import NOT_IDENTITY
from harness.validate import ConfigError

_SHOWN = 3  # keys of a difference
_NOWHERE = "nothing"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_fit(points: Iterable[Path], mine: str) -> None:
    """Compare the config of each stored point with that of its cell, as YAML. ConfigError names folder and keys."""
    for point in points:
        file = point / "config.yaml"
        try:
            theirs = file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}: remove that folder to measure the point again") from error
        if theirs != mine and (differs := difference(_flat(theirs, file), _flat(mine))):
            raise ConfigError(
                f"{point} was measured with another config ({say(differs)}): move it away, or give this run another "
                "name=NAME"
            )


def nearest(experiment_dir: Path, config_yaml: str, strangers: Iterable[str]) -> str | None:
    """What sets a cell apart from the most alike of other cells on disk; None where none is alike."""
    mine = _flat(config_yaml)
    best: tuple[int, str, dict[str, tuple[Any, Any]]] | None = None
    for cell in strangers:
        file = next(iter(sorted((experiment_dir / cell).glob("c*-r*/config.yaml"))), None)
        if file is None:
            continue
        differs = difference(_flat(file.read_text(encoding="utf-8"), file), mine)
        if differs and (best is None or len(differs) < best[0]):
            best = len(differs), cell, differs
    if best is None or best[0] > _SHOWN:
        return None
    return f"{best[1]} on disk is another cell: {say(best[2])}"


def difference(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (value there, value here) where they differ."""
    keys = sorted({*theirs, *mine})
    pairs = {key: (theirs.get(key, _NOWHERE), mine.get(key, _NOWHERE)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def say(differs: Mapping[str, tuple[Any, Any]]) -> str:
    shown = [f"{key}: {there} there, {here} here" for key, (there, here) in list(differs.items())[:_SHOWN]]
    more = len(differs) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


@lru_cache(maxsize=4096)
def _flat(text: str, file: Path | None = None) -> dict[str, Any]:
    """What of a stored config defines its cell, by dotted key. ConfigError for what is no config."""
    try:
        plain = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: cannot be read: remove that folder to measure the point again") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{file}: holds no config: remove that folder to measure the point again")
    found: dict[str, Any] = {}
    for group, value in plain.items():
        inside = value.items() if isinstance(value, dict) else [("", value)]
        dropped = NOT_IDENTITY.get(group, ()) if isinstance(value, dict) else ()
        if group not in NOT_IDENTITY[""]:
            found |= {f"{group}.{key}".rstrip("."): item for key, item in inside if key not in dropped}
    return found
