"""Selectors: which positions a layer attends to, one module per kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.schema import Config, SelectorKind

if TYPE_CHECKING:
    from harness.engine.selectors.base import Selector


def make_selector(config: Config, num_rows: int) -> Selector:
    """The selector of `selector.kind` with state for that many rows; imports torch."""
    from harness.engine.selectors.dense import Dense
    from harness.engine.selectors.dsa import DSA
    from harness.engine.selectors.quest import Quest

    if config.selector.kind is SelectorKind.dsa:
        return DSA(config, num_rows)
    if config.selector.kind is SelectorKind.quest:
        return Quest(config, num_rows)
    return Dense()
