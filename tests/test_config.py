"""The config's edge: what composes, what a grid means, and every refusal as one line with key and choices."""

from __future__ import annotations

import copy
import functools
import json
import operator
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from harness import schema
from harness.config import load_cells
from harness.overrides import GROUPS, as_override, choices, config_dir
from harness.schema import Config, SelectorKind, WorkloadKind
from harness.validate import ABOVE_ZERO, AT_LEAST_ONE, AT_LEAST_ZERO, ConfigError, complete, top_k

QUICK = "experiment=quickstart"
SMOLLM2 = "experiment=smollm2_quest"
ONE = [QUICK, "offload=fetch_all"]
SYSTEMS = ["full_kv", "fetch_all", "hisparse_sync", "no_io_oracle"]


@functools.cache
def _cells(*overrides: str) -> list[Config]:
    """Composing takes a tenth of a second, so cells that no test changes are shared."""
    return load_cells(list(overrides))


def _mla() -> Config:
    return copy.deepcopy(_cells(QUICK)[2])


def _gqa() -> Config:
    return copy.deepcopy(_cells(SMOLLM2)[1])


def _refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def _set(config: Config, **settings: Any) -> Config:
    """Set `group__key` to a value."""
    for key, value in settings.items():
        *owner, name = key.split("__")
        setattr(operator.attrgetter(".".join(owner))(config) if owner else config, name, value)
    return config


# --- refusals on the command line: (overrides, what the line must contain) ---------------------------------------

COMMAND_LINE = [
    ([], ["experiment=NAME is required", "quickstart", "smollm2_quest"]),
    (["experiment=nope"], ["experiment=nope", "choose from", "quickstart"]),
    (["experiment=null"], ["experiment=null", "choose from", "quickstart"]),
    (["experiment=quickstart,smollm2_quest"], ["experiment takes one value", "quickstart"]),
    (["experimnt=quickstart"], ["unknown key experimnt", "did you mean experiment?"]),
    ([QUICK, "ofload=full_kv"], ["unknown key ofload", "did you mean offload?"]),
    ([QUICK, "offload.cache_slot=128"], ["did you mean offload.cache_slots?", "offload has system, cache_slots"]),
    ([QUICK, "offload.cache_slots.x=1"], ["unknown key offload.cache_slots.x", "no keys below"]),
    ([QUICK, "zzz=1"], ["unknown key zzz", "the config has", "model", "experiment"]),
    ([QUICK, "experiment.x=1"], ["unknown key experiment.x"]),
    ([QUICK, "offload=nope"], ["offload=nope", *SYSTEMS]),
    ([QUICK, "offload=full_kv,nope"], ["offload=nope", *SYSTEMS]),
    ([QUICK, "offload=null"], ["offload=null", *SYSTEMS]),
    ([QUICK, "model={a: 1}"], ["no such model", "glm_tiny", "smollm2_135m"]),
    ([QUICK, "offload@x=full_kv"], ["offload@x=full_kv", "write offload=VALUE"]),
    ([QUICK, "+extra=1"], ["+extra=1", "cannot be added"]),
    ([QUICK, "~offload"], ["~offload", "cannot be added, deleted"]),
    ([QUICK, "hydra.run.dir=x"], ["hydra.run.dir"]),
    ([QUICK, "just words"], ["cannot read 'just words'", "KEY=VALUE"]),
    ([QUICK, "load.repeats=[1,"], ["cannot read", "KEY=VALUE"]),
    ([QUICK, "grid={offload: [full_kv]}"], ["grid", "KEY=a,b"]),
    ([QUICK, "grid.offload=[full_kv]"], ["grid.offload", "KEY=a,b"]),
    ([QUICK, "load.repeats=two"], ["load.repeats=two must be a whole number"]),
    ([QUICK, "load.repeats=1.5"], ["load.repeats=1.5 must be a whole number"]),
    ([QUICK, "workload.seed=1,x"], ["workload.seed=x must be a whole number"]),
    ([QUICK, "workload.temperature=warm"], ["workload.temperature=warm must be a number"]),
    ([QUICK, "dry_run=maybe"], ["dry_run=maybe must be true or false"]),
    ([QUICK, "load.concurrencies=3"], ["load.concurrencies=3 must be a list of whole numbers", "[1, 2]"]),
    ([QUICK, "load.concurrencies=[a]"], ["load.concurrencies=['a'] must be a list of whole numbers"]),
    ([QUICK, "workload.files=x"], ["workload.files=x must be a list of texts"]),
    ([QUICK, "offload.system=foo"], ["offload.system=foo must be one of", *SYSTEMS]),
    ([QUICK, "model.family=null"], ["model.family=null must be one of mla, gqa"]),
    ([QUICK, "engine.device_kv_budget=null"], ["engine.device_kv_budget=null must be"]),
    ([QUICK, "offload.cache_slots=many"], ["offload.cache_slots=many must be a whole number or null"]),
    ([QUICK, "load=3"], ["load=3", "load.concurrencies", "load.num_requests"]),
    ([QUICK, "load.concurrencies=1,2"], ["load.concurrencies=1 must be a list of whole numbers, such as [1, 2]"]),
    ([QUICK, "load.concurrencies=[1],[2]"], ["load.concurrencies takes one value for all cells"]),
    ([QUICK, "load.repeats=1,2"], ["load.repeats takes one value for all cells, a whole number"]),
    ([QUICK, "name=a,b"], ["name takes one value for all cells"]),
    ([QUICK, "results_dir=a,b"], ["results_dir takes one value for all cells"]),
    ([QUICK, "dry_run=true,false"], ["dry_run takes one value for all cells, true or false"]),
    ([QUICK, "tracker=none,wandb"], ["tracker takes one value for all cells, one of none, wandb"]),
    ([QUICK, "cluster.address=a,b"], ["cluster.address takes one value for all cells"]),
]


@pytest.mark.parametrize(("overrides", "parts"), COMMAND_LINE, ids=lambda v: " ".join(v) if v else "nothing")
def test_the_command_line_is_refused_before_composing(
    overrides: list[str], parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def composing(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("this should have been refused earlier")

    monkeypatch.setattr("harness.config.compose", composing)
    message = _refusal(lambda: load_cells(overrides))
    for part in parts:
        assert part in message


COMPOSED = [
    ([*ONE, "selector=quest"], ["selector=quest", "model=glm_tiny", "dense, dsa"]),
    ([SMOLLM2, "offload=full_kv", "selector=dsa"], ["selector=dsa", "model=smollm2_135m", "dense, quest"]),
    ([QUICK, "offload=hisparse_sync", "offload.cache_slots=63"], ["offload.cache_slots=63 (B)", "at least 64"]),
    (
        [QUICK, "offload=hisparse_sync", "offload.prefetch=exact"],
        ["offload.prefetch=exact", "offload=hisparse_sync", "choose none"],
    ),
    (
        [QUICK, "offload=hisparse_prefetch", "offload.prefetch=none"],
        ["offload.prefetch=none", "choose exact or speculative"],
    ),
    ([*ONE, "platform.link.bandwidth=0"], ["platform.link.bandwidth=0", "2GB"]),
    ([*ONE, "platform.link.bandwidth=fast"], ["platform.link.bandwidth", "'fast' is not a size"]),
    ([*ONE, "platform.link.latency_us=5"], ["platform.link.latency_us=5", "platform.link.bandwidth"]),
    ([*ONE, "platform=cuda", "engine.batch_invariant=true"], ["engine.batch_invariant=true", "leave it false"]),
    ([*ONE, "platform.num_cpus=2", "engine.batch_invariant=true"], ["num_cpus=2", "choose platform.num_cpus=1"]),
    ([*ONE, "platform=cuda", "platform.link.bandwidth=2GB"], ["platform.link.bandwidth", "a GPU has its own"]),
    ([*ONE, "platform=cuda", "platform.num_devices=2"], ["platform.num_devices=2", "one GPU"]),
    ([*ONE, "platform=cpu_link", "platform.link.latency_us=-1"], ["platform.link.latency_us=-1", "not be negative"]),
    ([*ONE, "selector.top_k=1025"], ["selector.top_k=1025", "engine.context_len=1024"]),
    (
        [*ONE, "load.num_requests=16"],
        ["exactly one of load.num_requests", "load.requests_per_worker"],
    ),
    ([*ONE, "load.requests_per_worker=null"], ["exactly one of load.num_requests"]),
    ([*ONE, "name=../x"], ["name='../x'", "letters"]),
    (
        [*ONE, "engine.device_kv_budget=lots"],
        ["engine.device_kv_budget", "'lots' is not a size", "512MiB"],
    ),
    ([QUICK, "engine.context_len=${nothing}"], ["engine.context_len", "nothing"]),
    (
        [*ONE, "engine.context_len='???'"],
        ["engine.context_len must be set", "engine.context_len=VALUE"],
    ),
]


@pytest.mark.parametrize(("overrides", "parts"), COMPOSED, ids=lambda v: " ".join(v))
def test_a_composed_cell_is_refused(overrides: list[str], parts: list[str]) -> None:
    message = _refusal(lambda: load_cells(overrides))
    for part in parts:
        assert part in message


# --- refusals of values: (settings, what the line must contain) --------------------------------------------------

IMPOSSIBLE: list[tuple[Callable[[], Config], dict[str, Any], list[str]]] = [
    (_mla, {"offload__cache_slots": 1}, ["offload.cache_slots=1 (B)", "k=64", "at least 64"]),
    (_mla, {"selector__top_k": 0}, ["selector.top_k=0", "between 1", "engine.context_len=1024"]),
    (_mla, {"selector__top_k": 1025}, ["selector.top_k=1025", "engine.context_len=1024"]),
    (_mla, {"selector__kind": SelectorKind.quest}, ["selector=quest", "choose from dense, dsa"]),
    (_gqa, {"selector__kind": SelectorKind.dsa}, ["selector=dsa", "choose from dense, quest"]),
    (_mla, {"selector__kind": SelectorKind.dense}, ["selector.top_k=64 must be null", "dense"]),
    (_gqa, {"selector__top_k": None}, ["selector.top_k must be set", "quest"]),
    (_gqa, {"selector__top_k": 17}, ["selector.top_k=17", "multiple of selector.page_size=16"]),
    (_mla, {"model__index_head_dim": None}, ["model=glm_tiny has no indexer", "model.index_num_heads"]),
    (_mla, {"model__kv_lora_rank": None}, ["model.kv_lora_rank must be set", "mla"]),
    (_gqa, {"model__num_kv_heads": None}, ["model.num_kv_heads must be set", "gqa"]),
    (_gqa, {"model__num_kv_heads": 2}, ["model.num_heads=9", "multiple of model.num_kv_heads=2"]),
    (_mla, {"model__qk_rope_head_dim": 31}, ["model.qk_rope_head_dim=31 must be even"]),
    (_gqa, {"model__head_dim": 63}, ["model.head_dim=63 must be even"]),
    (_mla, {"model__embed_common": 1.5}, ["model.embed_common=1.5", "0 to 1"]),
    (_mla, {"engine__context_len": 8193}, ["engine.context_len=8193", "model.max_positions=8192"]),
    (_mla, {"engine__context_len": 0}, ["engine.context_len=0", "between 1"]),
    (_mla, {"engine__port": 65536}, ["engine.port=65536", "65535"]),
    (_mla, {"engine__device_kv_budget": "9 apples"}, ["engine.device_kv_budget", "'9 apples'", "MiB"]),
    (_mla, {"engine__host_kv_budget": -1}, ["engine.host_kv_budget", "-1 is not a size"]),
    (_mla, {"platform__memory": "huge"}, ["platform.memory", "'huge' is not a size"]),
    (_mla, {"workload__input_len": 833}, ["workload.input_len=833", "workload.output_len=192", "1024"]),
    (_mla, {"workload__kind": WorkloadKind.text_files}, ["workload=text_files", "glm_tiny", "random_ids"]),
    (_mla, {"load__concurrencies": []}, ["load.concurrencies=[]", "at least 1"]),
    (_mla, {"load__concurrencies": [1, 0]}, ["load.concurrencies=[1, 0]", "at least 1"]),
    (_mla, {"load__concurrencies": [2, 2]}, ["load.concurrencies=[2, 2]", "twice"]),
    (_mla, {"load__requests_per_worker": None, "load__num_requests": 15}, ["load.num_requests=15", "16"]),
    (_mla, {"name": ""}, ["name=''", "folder"]),
    (_mla, {"name": ".hidden"}, ["name='.hidden'"]),
    (_mla, {"model__name": "a/b"}, ["model.name='a/b'"]),
]


@pytest.mark.parametrize(("base", "settings", "parts"), IMPOSSIBLE, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_impossible_combinations_are_refused(
    base: Callable[[], Config], settings: dict[str, Any], parts: list[str]
) -> None:
    complete(base())  # it is the settings that are refused
    message = _refusal(lambda: complete(_set(base(), **settings)))
    for part in parts:
        assert part in message


@pytest.mark.parametrize("key", [*AT_LEAST_ONE, *AT_LEAST_ZERO, *ABOVE_ZERO])
def test_every_number_has_its_lower_bound(key: str) -> None:
    bad = -1 if key in AT_LEAST_ZERO else 0
    config = _set(_mla(), **{key.replace(".", "__"): bad})
    assert _refusal(lambda: complete(config)).startswith(f"{key}={bad} must")
    if isinstance(operator.attrgetter(key)(_mla()), float):
        for endless in (float("nan"), float("inf")):
            config = _set(_mla(), **{key.replace(".", "__"): endless})
            assert _refusal(lambda: complete(config)).startswith(f"{key}=")  # noqa: B023


def test_no_number_of_the_schema_goes_unchecked() -> None:
    """A new numeric field must be given a bound, or be named here with the test that covers it."""
    elsewhere = {
        "selector.top_k",
        "model.index_top_k",
        "offload.cache_slots",
        "engine.context_len",
        "workload.miss_rate",  # test_offline_kernels
    }

    def numeric_keys(owner: object, prefix: str) -> Iterator[str]:
        for f in fields(owner):  # type: ignore[arg-type]
            if is_dataclass(inner := getattr(owner, f.name)):
                yield from numeric_keys(inner, f"{prefix}{f.name}.")
            elif set(str(f.type).replace(" ", "").split("|")) & {"int", "float"} and "str" not in str(f.type):
                yield f"{prefix}{f.name}"

    assert set(numeric_keys(Config(), "")) == {*AT_LEAST_ONE, *AT_LEAST_ZERO, *ABOVE_ZERO, *elsewhere}


def test_limits_themselves_are_allowed() -> None:
    config = _set(_mla(), offload__cache_slots=64, selector__top_k=64, workload__input_len=832)
    _set(config, load__requests_per_worker=None, load__num_requests=16)
    assert complete(config).offload.cache_slots == 64


def test_prefetch_and_link_of_a_cell() -> None:
    systems = "offload=full_kv,hisparse_sync,hisparse_prefetch,no_io_oracle"
    cells = load_cells([QUICK, "platform=cpu_link", "platform.link.bandwidth=250MB", systems])
    assert [c.offload.prefetch.value for c in cells if c.offload.prefetch] == ["none", "none", "exact", "exact"]
    assert {c.platform.link.label for c in cells} == {"emulated 250 MB/s + 10 us"}
    assert load_cells([QUICK, "offload=full_kv"])[0].platform.link.label == "memory copy"
    started_empty = load_cells([QUICK, "offload=full_kv,hisparse_sync", "offload.cold_start=empty"])
    assert [c.offload.cold_start.value for c in started_empty] == ["last", "empty"]  # full KV has nothing to start


def test_a_gpu_has_a_link_of_its_own() -> None:
    platform = load_cells([QUICK, "platform=cuda", "offload=full_kv", "platform.cuda_graphs=false"])[0].platform
    assert (platform.link_label, platform.cuda_graphs) == ("the GPU's own", False)
    on_cpu = load_cells([QUICK, "offload=full_kv", "platform.cuda_graphs=false"])[0].platform
    assert (on_cpu.link_label, on_cpu.cuda_graphs) == ("memory copy", True)  # a key without meaning: the same cell


def test_derived_values() -> None:
    full, fetch, sync = _cells(QUICK)[:3]
    assert full.offload.cache_slots is None
    assert fetch.offload.cache_slots == 64 == fetch.selector.top_k  # k is the model's own
    assert sync.offload.cache_slots == 128  # 2k
    assert sync.engine.device_kv_budget == int(9.6 * 2**20)
    dense = _set(_mla(), selector__kind=SelectorKind.dense, selector__top_k=None, offload__cache_slots=None)
    assert top_k(complete(dense)) == 1024 == dense.offload.cache_slots  # never more slots than positions
    longest = complete(_set(_mla(), engine__context_len=None))
    assert longest.engine.context_len == longest.model.max_positions


# --- the grid ----------------------------------------------------------------------------------------------------


def _systems(cells: list[Config]) -> list[str]:
    return [cell.offload.system.value for cell in cells]


def test_an_experiment_is_its_grid() -> None:
    cells = _cells(QUICK)
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
    message = _refusal(lambda: load_cells([QUICK, "offload=hisparse_sync", "offload.cache_slots=128,8"]))
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
    assert cell.model.hidden_size == _mla().model.hidden_size  # inherited from conf/model/glm_tiny.yaml
    assert "mine" in choices("model", folder) and "glm_tiny" in choices("model", folder)
    message = _refusal(lambda: load_cells(["experiment=owl"], folder))
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
    message = _refusal(lambda: load_cells(["experiment=own"], folder))
    assert all(part in message for part in said), message


def test_a_users_file_cannot_hide_one_of_ours(own: Callable[[str], Path]) -> None:
    folder = own("null")
    (folder / "model" / "mine.yaml").rename(folder / "model" / "glm_tiny.yaml")
    message = _refusal(lambda: load_cells(["experiment=own"], folder))
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
    message = _refusal(lambda: load_cells(["experiment=own"], own(grid)))
    for part in parts:
        assert part in message


def test_a_bad_key_in_a_users_file_is_named(own: Callable[[str], Path]) -> None:
    folder = own("null")
    (folder / "model" / "mine.yaml").write_text(OWN_MODEL + "num_layer: 3\n")
    assert "num_layer" in _refusal(lambda: load_cells(["experiment=own"], folder))
    (folder / "model" / "mine.yaml").write_text(OWN_MODEL + "num_heads: many\n")
    assert "model.num_heads" in _refusal(lambda: load_cells(["experiment=own"], folder))


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
    cells = _cells(f"experiment={name}")
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
