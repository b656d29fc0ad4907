"""Every refusal of a config as one line with key and choices, and what a config derives."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from config_cells import ONE, QUICK, SMOLLM2, SYSTEMS, cells_of, gqa, mla, refusal, set_keys

from harness.bounds import ABOVE_ZERO, AT_LEAST_ONE, AT_LEAST_ZERO
from harness.config import load_cells
from harness.schema import Config, SelectorKind, WorkloadKind
from harness.validate import complete

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
    message = refusal(lambda: load_cells(overrides))
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
    message = refusal(lambda: load_cells(overrides))
    for part in parts:
        assert part in message


# --- refusals of values: (settings, what the line must contain) --------------------------------------------------

IMPOSSIBLE: list[tuple[Callable[[], Config], dict[str, Any], list[str]]] = [
    (mla, {"offload__cache_slots": 1}, ["offload.cache_slots=1 (B)", "k=64", "at least 64"]),
    (mla, {"selector__top_k": 0}, ["selector.top_k=0", "between 1", "engine.context_len=1024"]),
    (mla, {"selector__top_k": 1025}, ["selector.top_k=1025", "engine.context_len=1024"]),
    (mla, {"selector__kind": SelectorKind.quest}, ["selector=quest", "choose from dense, dsa"]),
    (gqa, {"selector__kind": SelectorKind.dsa}, ["selector=dsa", "choose from dense, quest"]),
    (mla, {"selector__kind": SelectorKind.dense}, ["selector.top_k=64 must be null", "dense"]),
    (gqa, {"selector__top_k": None}, ["selector.top_k must be set", "quest"]),
    (gqa, {"selector__top_k": 17}, ["selector.top_k=17", "multiple of selector.page_size=16"]),
    (mla, {"model__index_head_dim": None}, ["model=glm_tiny has no indexer", "model.index_num_heads"]),
    (mla, {"model__kv_lora_rank": None}, ["model.kv_lora_rank must be set", "mla"]),
    (gqa, {"model__num_kv_heads": None}, ["model.num_kv_heads must be set", "gqa"]),
    (gqa, {"model__num_kv_heads": 2}, ["model.num_heads=9", "multiple of model.num_kv_heads=2"]),
    (mla, {"model__qk_rope_head_dim": 31}, ["model.qk_rope_head_dim=31 must be even"]),
    (gqa, {"model__head_dim": 63}, ["model.head_dim=63 must be even"]),
    (mla, {"model__embed_common": 1.5}, ["model.embed_common=1.5", "0 to 1"]),
    (mla, {"engine__context_len": 8193}, ["engine.context_len=8193", "model.max_positions=8192"]),
    (mla, {"engine__context_len": 0}, ["engine.context_len=0", "between 1"]),
    (mla, {"engine__port": 65536}, ["engine.port=65536", "65535"]),
    (mla, {"engine__device_kv_budget": "9 apples"}, ["engine.device_kv_budget", "'9 apples'", "MiB"]),
    (mla, {"engine__host_kv_budget": -1}, ["engine.host_kv_budget", "-1 is not a size"]),
    (mla, {"platform__memory": "huge"}, ["platform.memory", "'huge' is not a size"]),
    (mla, {"workload__input_len": 833}, ["workload.input_len=833", "workload.output_len=192", "1024"]),
    (mla, {"workload__kind": WorkloadKind.text_files}, ["workload=text_files", "glm_tiny", "random_ids"]),
    (mla, {"load__concurrencies": []}, ["load.concurrencies=[]", "at least 1"]),
    (mla, {"load__concurrencies": [1, 0]}, ["load.concurrencies=[1, 0]", "at least 1"]),
    (mla, {"load__concurrencies": [2, 2]}, ["load.concurrencies=[2, 2]", "twice"]),
    (mla, {"load__requests_per_worker": None, "load__num_requests": 15}, ["load.num_requests=15", "16"]),
    (mla, {"name": ""}, ["name=''", "folder"]),
    (mla, {"name": ".hidden"}, ["name='.hidden'"]),
    (mla, {"model__name": "a/b"}, ["model.name='a/b'"]),
]


@pytest.mark.parametrize(("base", "settings", "parts"), IMPOSSIBLE, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_impossible_combinations_are_refused(
    base: Callable[[], Config], settings: dict[str, Any], parts: list[str]
) -> None:
    complete(base())  # it is the settings that are refused
    message = refusal(lambda: complete(set_keys(base(), **settings)))
    for part in parts:
        assert part in message


@pytest.mark.parametrize("key", [*AT_LEAST_ONE, *AT_LEAST_ZERO, *ABOVE_ZERO])
def test_every_number_has_its_lower_bound(key: str) -> None:
    bad = -1 if key in AT_LEAST_ZERO else 0
    config = set_keys(mla(), **{key.replace(".", "__"): bad})
    assert refusal(lambda: complete(config)).startswith(f"{key}={bad} must")
    if isinstance(operator.attrgetter(key)(mla()), float):
        for endless in (float("nan"), float("inf")):
            config = set_keys(mla(), **{key.replace(".", "__"): endless})
            assert refusal(lambda: complete(config)).startswith(f"{key}=")  # noqa: B023


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
    config = set_keys(mla(), offload__cache_slots=64, selector__top_k=64, workload__input_len=832)
    set_keys(config, load__requests_per_worker=None, load__num_requests=16)
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
    full, fetch, sync = cells_of(QUICK)[:3]
    assert full.offload.cache_slots is None
    assert fetch.offload.cache_slots == 64 == fetch.selector.top_k  # k is the model's own
    assert sync.offload.cache_slots == 128  # 2k
    assert sync.engine.device_kv_budget == int(9.6 * 2**20)
    dense = set_keys(mla(), selector__kind=SelectorKind.dense, selector__top_k=None, offload__cache_slots=None)
    assert complete(dense).top_k == 1024 == dense.offload.cache_slots  # never more slots than positions
    longest = complete(set_keys(mla(), engine__context_len=None))
    assert longest.engine.context_len == longest.model.max_positions
