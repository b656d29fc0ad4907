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
    from harness.engine.selectors.one_by_one import OneByOne
    from harness.engine.selectors.quest import Quest
    from harness.engine.selectors.recording import Recording

    selector: Selector = Dense()
    if config.selector.kind is SelectorKind.dsa:
        selector = DSA(config, num_rows)
    elif config.selector.kind is SelectorKind.quest:
        selector = Quest(config, num_rows)
    selector = OneByOne(selector) if config.engine.batch_invariant else selector
    return Recording(selector) if config.trace.record else selector
