"""The shipped miss rates are what their command makes."""

from __future__ import annotations

from importlib import resources

import pytest

from harness.simulation import replay_misses
from workloads.traces import synthetic


def test_rows_of_the_shipped_file_are_reproduced() -> None:
    if synthetic._native() is None:
        pytest.skip("nothing compiles here, and numpy takes minutes")
    shipped = resources.files("harness.simulation").joinpath("miss_rates.csv").read_text(encoding="utf-8")
    assert shipped.startswith(replay_misses.head())
    made = list(replay_misses.lines(contexts=(1.5, 4.0)))
    assert len(made) == 7 + 16
    lines = shipped.splitlines(keepends=True)
    assert [line for line in lines if line.split(",")[2:3] in (["1.5"], ["4"])] == made


def test_every_context_and_policy_is_in_the_file() -> None:
    shipped = resources.files("harness.simulation").joinpath("miss_rates.csv").read_text(encoding="utf-8")
    found = {tuple(line.split(",")[:3]) for line in shipped.removeprefix(replay_misses.head()).splitlines()}
    wanted = {
        (policy, f"{slots:g}", f"{context:g}")
        for context in replay_misses.CONTEXTS
        for policy in replay_misses.POLICIES
        for slots in replay_misses.SLOTS
        if slots < context
    }
    assert found == wanted | {("staging", "1", f"{context:g}") for context in replay_misses.CONTEXTS}
