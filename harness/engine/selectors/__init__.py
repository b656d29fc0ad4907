"""Selectors: which positions a layer attends to, one module per kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.schema import Config, SelectorKind

if TYPE_CHECKING:
    import torch

    from harness.engine.selectors.base import Selector


def make_selector(config: Config, num_rows: int, device: torch.device | None = None) -> Selector:
    """The selector of `selector.kind` with state for that many rows on a device (None: the CPU); imports torch."""
    from harness.engine.device import CPU
    from harness.engine.selectors.dense import Dense
    from harness.engine.selectors.dsa import DSA
    from harness.engine.selectors.exact_topk import ExactTopK
    from harness.engine.selectors.nsa import NSA
    from harness.engine.selectors.one_by_one import OneByOne
    from harness.engine.selectors.quest import Quest
    from harness.engine.selectors.recording import Recording
    from harness.engine.selectors.window import Window

    device = device or CPU
    makers: dict[SelectorKind, Callable[[], Selector]] = {
        SelectorKind.dense: Dense,
        SelectorKind.dsa: lambda: DSA(config, num_rows, device),
        SelectorKind.nsa: lambda: NSA(config, num_rows, device),
        SelectorKind.quest: lambda: Quest(config, num_rows, device),
        SelectorKind.exact_topk: lambda: ExactTopK(config, num_rows, device),
        SelectorKind.window: lambda: Window(config),
    }
    selector = makers[config.selector.kind]()
    selector = OneByOne(selector) if config.engine.batch_invariant else selector
    return Recording(selector) if config.trace.record else selector
