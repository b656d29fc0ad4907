"""Which layers follow another's device cache, and what a config's prefetch comes to. Pure, without torch."""

from __future__ import annotations

from harness.schema import Config, Prefetch, SelectorKind


def slot_owners(config: Config) -> list[int]:
    """For each layer the one whose slot state it uses: its anchor's where shared layers follow in lockstep
    (section 3.5; a completed config), else its own."""
    model = config.model
    if config.offload.prefetch is Prefetch.exact and shares_selections(config):
        return [model.anchor_of(layer) for layer in range(model.num_layers)]
    return list(range(len(model.managed_layers)))


def followers(owners: list[int]) -> dict[int, list[int]]:
    """For each layer with a slot state of its own, the layers that use it beside that one."""
    return {owner: [at for at, of in enumerate(owners) if of == owner != at] for owner in owners}


def shares_selections(config: Config) -> bool:
    """Whether some layer attends to what another has selected."""
    model = config.model
    if config.selector.kind is not SelectorKind.dsa:
        return False
    return any(model.anchor_of(layer) != layer for layer in range(model.num_layers))


def prefetch_label(config: Config) -> str:
    """What the rows say: the prefetch that happens, and why it is not the one asked for."""
    assert config.offload.prefetch is not None, "complete() was not called"
    if not config.offload.system.keeps_slots:
        return Prefetch.none.value
    if config.offload.prefetch is Prefetch.exact and not shares_selections(config):
        return f"none ({config.model.name} with {config.selector.kind.value} shares no selections)"
    return config.offload.prefetch.value
