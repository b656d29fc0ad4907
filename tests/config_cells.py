"""Configs that tests of the config change, and the one line that refuses them."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest

from harness.config import load_cells
from harness.schema import Config
from harness.validate import ConfigError

QUICK = "experiment=quickstart"
SMOLLM2 = "experiment=smollm2_quest"
SYSTEMS = ["full_kv", "fetch_all", "hisparse_sync", "no_io_oracle"]
ONE = [QUICK, "offload=fetch_all"]


@functools.cache
def cells_of(*overrides: str) -> list[Config]:
    """Composing takes a tenth of a second, so cells that no test changes are shared."""
    return load_cells(list(overrides))


def mla() -> Config:
    return copy.deepcopy(cells_of(QUICK)[2])


def gqa() -> Config:
    return copy.deepcopy(cells_of(SMOLLM2)[1])


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def set_keys(config: Config, **settings: Any) -> Config:
    """Set `group__key` to a value."""
    for key, value in settings.items():
        *owner, name = key.split("__")
        setattr(operator.attrgetter(".".join(owner))(config) if owner else config, name, value)
    return config
