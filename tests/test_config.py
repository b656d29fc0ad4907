"""The config's edge: what composes, and what a grid means."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from config_cells import QUICK, SMOLLM2, SYSTEMS, cells_of, mla, refusal
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from harness import schema
from harness.config import load_cells
from harness.overrides import GROUPS, as_override, choices, config_dir
from harness.schema import Config

# --- the grid ----------------------------------------------------------------------------------------------------


def _systems(cells: list[Config]) -> list[str]:
    return [cell.offload.system.value for cell in cells]


def test_an_experiment_is_its_grid() -> None:
    cells = cells_of(QUICK)
    assert _systems(cells) == SYSTEMS
    assert {cell.name for cell in cells} == {"quickstart"}


def test_an_override_replaces_an_axis_and_the_later_one_counts() -> None:
    (cell,) = load_cells([QUICK, "offload=full_kv,fetch_all", "offload=hisparse_sync", "name=mine"])
    assert _systems([cell]) == ["hisparse_sync"]
    assert cell.name == "mine"
    cells = load_cells([QUICK, "offload=hisparse_sync", "offload=full_kv,fetch_all"])
    assert _systems(cells) == ["full_kv", "fetch_all"]


def test_the_later_experiment_counts_for_the_name_too() -> None:
    (cell,) = load_cells([QUICK, SMOLLM2, "offload=full_kv"])
    assert (cell.name, cell.model.name) == ("smollm2_quest", "smollm2_135m")


def test_a_sweep_adds_an_axis_and_equal_cells_are_one() -> None:
    cells = load_cells([QUICK, "offload=full_kv,hisparse_sync", "offload.cache_slots=64,128"])
    found = [(cell.offload.system.value, cell.offload.cache_slots) for cell in cells]
    assert found == [("full_kv", None), ("hisparse_sync", 64), ("hisparse_sync", 128)]


def test_a_bad_cell_of_a_sweep_is_refused() -> None:
    message = refusal(lambda: load_cells([QUICK, "offload=hisparse_sync", "offload.cache_slots=128,8"]))
    assert "offload.cache_slots=8" in message


# --- the user's own folder ---------------------------------------------------------------------------------------

OWN_MODEL = """
defaults: [glm_tiny]
name: mine
num_layers: 2
"""
OWN_EXPERIMENT = """
# @package _global_
defaults:
  - override /model: mine
load:
  concurrencies: [1]
  num_requests: 3
grid: {grid}
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], Path]:
    """A --config-dir with a model `mine` and an experiment `own` of the given grid."""

    def write(grid: str) -> Path:
        for group, text in (("model", OWN_MODEL), ("experiment", OWN_EXPERIMENT.replace("{grid}", grid))):
            (tmp_path / group).mkdir(exist_ok=True)
            (tmp_path / group / ("mine.yaml" if group == "model" else "own.yaml")).write_text(text)
        return tmp_path

    return write


def test_a_users_experiment_and_model_are_found(own: Callable[[str], Path]) -> None:
    folder = own("null")
    (cell,) = load_cells(["experiment=own"], folder)
    assert (cell.name, cell.model.name, cell.model.num_layers) == ("own", "mine", 2)
    assert cell.model.hidden_size == mla().model.hidden_size  # inherited from conf/model/glm_tiny.yaml
    assert "mine" in choices("model", folder) and "glm_tiny" in choices("model", folder)
    message = refusal(lambda: load_cells(["experiment=owl"], folder))
    assert "own" in message and "quickstart" in message


@pytest.mark.parametrize(
    ("group", "change", "said"),
    [
        ("experiment", ("grid: null", "grid: ["), ["own.yaml line", "is not YAML"]),
        ("experiment", ("# @package _global_", "# mine"), ["own.yaml", "must begin with the line # @package _global_"]),
        ("experiment", ("grid: null", "workload: {input_length: 3}"), ["workload.input_length", "workload.input_len"]),
        ("model", ("num_layers:", "num_layer:"), ["model.num_layer", "did you mean model.num_layers"]),
    ],
)
def test_a_users_file_is_refused_like_the_command_line(
    own: Callable[[str], Path], group: str, change: tuple[str, str], said: list[str]
) -> None:
    folder = own("null")
    (file,) = (folder / group).glob("*.yaml")
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change))
    message = refusal(lambda: load_cells(["experiment=own"], folder))
    assert all(part in message for part in said), message


def test_a_users_file_cannot_hide_one_of_ours(own: Callable[[str], Path]) -> None:
    folder = own("null")
    (folder / "model" / "mine.yaml").rename(folder / "model" / "glm_tiny.yaml")
    message = refusal(lambda: load_cells(["experiment=own"], folder))
    assert "model=glm_tiny exists already" in message


def test_a_list_of_grids_is_their_union(own: Callable[[str], Path]) -> None:
    grid = "[{offload: [full_kv]}, {offload: [full_kv, hisparse_sync], offload.cache_slots: [64, 96]}]"
    cells = load_cells(["experiment=own"], own(grid))
    found = [(cell.offload.system.value, cell.offload.cache_slots) for cell in cells]
    assert found == [("full_kv", None), ("hisparse_sync", 64), ("hisparse_sync", 96)]
    (cell,) = load_cells(["experiment=own", "offload=fetch_all"], own(grid))  # all grids collapse into one cell
    assert _systems([cell]) == ["fetch_all"]


def test_texts_of_a_grid_reach_the_config_unchanged(own: Callable[[str], Path]) -> None:
    odd = ["a, b", "it's {x}", "null", "back\\slash"]
    assert [
        cell.workload.name for cell in load_cells(["experiment=own"], own(f"{{workload.name: {json.dumps(odd)}}}"))
    ] == odd


@pytest.mark.parametrize(
    ("grid", "parts"),
    [
        ("3", ["grid must map axes to lists", "3"]),
        ("[1]", ["grid must map axes to lists", "1"]),
        ("{offload: full_kv}", ["grid.offload must be a list", "'full_kv'"]),
        ("{offload: []}", ["grid.offload must be a list", "[]"]),
        ("{offload: [nope]}", ["offload=nope", *SYSTEMS]),
        ("{offlod: [full_kv]}", ["unknown key offlod", "did you mean offload?"]),
        ("{workload.seed: [x]}", ["workload.seed=x must be a whole number"]),
        ("{load.concurrencies: [[1], [2]]}", ["load.concurrencies takes one value for all cells"]),
        ("{experiment: [quickstart]}", ["experiment takes one value for all cells"]),
        ("{grid: [1]}", ["grid"]),
    ],
)
def test_a_bad_grid_is_refused(own: Callable[[str], Path], grid: str, parts: list[str]) -> None:
    message = refusal(lambda: load_cells(["experiment=own"], own(grid)))
    for part in parts:
        assert part in message


def test_a_bad_key_in_a_users_file_is_named(own: Callable[[str], Path]) -> None:
    folder = own("null")
    (folder / "model" / "mine.yaml").write_text(OWN_MODEL + "num_layer: 3\n")
    assert "num_layer" in refusal(lambda: load_cells(["experiment=own"], folder))
    (folder / "model" / "mine.yaml").write_text(OWN_MODEL + "num_heads: many\n")
    assert "model.num_heads" in refusal(lambda: load_cells(["experiment=own"], folder))


def test_values_as_overrides() -> None:
    values = [None, True, 2, 0.5, "x", [1, "a", None]]
    assert [as_override(value) for value in values] == ["null", "true", "2", "0.5", "'x'", "[1,'a',null]"]


# --- every file under conf/ --------------------------------------------------------------------------------------

EXPERIMENTS = choices("experiment")
CHOICES = {group: choices(group) for group in GROUPS if group != "experiment"}


def test_every_yaml_is_a_choice_of_a_group() -> None:
    found = {path.relative_to(config_dir()) for path in config_dir().rglob("*") if path.is_file()}
    known = {Path(group) / f"{name}.yaml" for group in GROUPS for name in choices(group)}
    assert found == known | {Path("config.yaml")}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_loads_and_opens_with_its_command(name: str) -> None:
    lines = (config_dir() / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert lines[:2] == ["# @package _global_", f"# python -m harness experiment={name}"]
    assert lines[2].startswith("# ")
    cells = cells_of(f"experiment={name}")
    assert cells and {cell.name for cell in cells} == {name}
    assert all(cell.description for cell in cells)
    for cell in cells:
        assert schema.from_yaml(schema.to_yaml(cell)) == cell


@pytest.mark.parametrize("number", range(max(map(len, CHOICES.values()))))
def test_every_choice_fits_the_schema(number: int) -> None:
    """All groups at once: the first of each, the second of each, and so on."""
    chosen = {group: names[min(number, len(names) - 1)] for group, names in CHOICES.items()}
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="test"):
        composed = compose("config", overrides=[f"{group}={name}" for group, name in chosen.items()])
    for group, name in chosen.items():
        typed = OmegaConf.to_container(composed[group], enum_to_str=True)
        own = OmegaConf.to_container(OmegaConf.load(config_dir() / group / f"{name}.yaml"))
        own.pop("defaults", None)
        assert _within(own, typed), f"conf/{group}/{name}.yaml"


def _within(own: Any, typed: Any) -> bool:
    """Whether every leaf of a file is in the composed group."""
    if not isinstance(own, dict):
        return own == typed
    return isinstance(typed, dict) and all(key in typed and _within(own[key], typed[key]) for key in own)
