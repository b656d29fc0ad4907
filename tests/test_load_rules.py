"""Settings of load and workload that do not go together, each refused in one line that names the key."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from harness.config import load_cells
from harness.schema import ArrivalKind, Config, LengthKind, LoadMode, WorkloadKind
from harness.validate import ConfigError, complete


@functools.cache
def _composed(*overrides: str) -> Config:
    return load_cells(["experiment=quickstart", "offload=full_kv", *overrides])[0]


def _with(base: Config, **settings: Any) -> Config:
    config = copy.deepcopy(base)
    for key, value in settings.items():
        group, name = key.split("__")
        setattr(getattr(config, group), name, value)
    return config


def closed(**settings: Any) -> Config:
    return _with(_composed(), **settings)


def opened(**settings: Any) -> Config:
    good = {
        "load__mode": LoadMode.open,
        "load__arrivals": ArrivalKind.poisson,
        "load__request_rate": 2.0,
        "load__requests_per_worker": None,
        "load__num_requests": 5,
    }
    return closed(**(good | settings))


def replayed(**settings: Any) -> Config:
    limits = {f"workload__{key}": 300 for key in ("input_len", "output_len", "max_input_len", "max_output_len")}
    trace = {"workload__kind": WorkloadKind.mooncake, "workload__files": ["trace"]}
    pace = {"load__arrivals": ArrivalKind.trace, "load__request_rate": None}
    return opened(**(pace | limits | trace | settings))


def drawn(kind: str, **settings: Any) -> Config:
    return closed(workload__lengths=LengthKind(kind), **settings)


GOOD = [
    partial(closed, load__max_seconds=3.0, load__stagger_s=0.1, load__processes=1),
    partial(opened),
    partial(
        opened, load__num_requests=1, load__concurrencies=[64]
    ),  # a limit of requests in flight need not be reached
    partial(opened, load__arrivals=ArrivalKind.gamma, load__burstiness=0.5),
    partial(replayed),
    partial(replayed, load__slowdown=0.1, workload__length_scale=0.1),
    partial(replayed, load__arrivals=ArrivalKind.constant, load__request_rate=3.0),  # its lengths at another pace
    partial(drawn, "uniform", workload__input_spread=0.05),
    partial(drawn, "lognormal", workload__input_spread=1.5, workload__max_input_len=800, workload__max_output_len=192),
    partial(
        drawn,
        "empirical",
        workload__length_file="x.csv",
        **{f"workload__{key}": 400 for key in ("input_len", "output_len", "max_input_len", "max_output_len")},
    ),
]


@pytest.mark.parametrize("config", GOOD)
def test_what_goes_together_is_accepted(config: Callable[[], Config]) -> None:
    complete(config())


BAD = [
    (partial(closed, load__request_rate=2.0), ["load.request_rate=2.0", "load.mode=closed", "needs load.mode=open"]),
    (partial(closed, load__arrivals=ArrivalKind.trace), ["load.arrivals=trace", "needs load.mode=open"]),
    (partial(closed, load__burstiness=2.0), ["load.burstiness=2.0", "load.mode=open"]),
    (partial(closed, load__slowdown=2.0), ["load.slowdown=2.0", "load.mode=open"]),
    (partial(closed, load__processes=2), ["load.processes=2", "load.concurrencies=1"]),
    (partial(closed, load__max_failed_share=1.5), ["load.max_failed_share", "0 to 1"]),
    (partial(opened, load__arrivals=None), ["load.mode=open needs load.arrivals", "constant, poisson, gamma, trace"]),
    (
        partial(closed, load__mode=LoadMode.open, load__stagger_s=1.0),  # from closed to open: all of it at once
        ["needs load.arrivals", "and load.request_rate", "; load.mode=open has no workers: set load.num", "stagger_s"],
    ),
    (partial(opened, load__requests_per_worker=2), ["set load.num_requests", "load.requests_per_worker=null"]),
    (partial(opened, load__num_requests=None), ["set load.num_requests"]),
    (partial(opened, load__stagger_s=1.0), ["load.stagger_s=1.0", "load.mode=open"]),
    (partial(opened, load__request_rate=None), ["load.arrivals=poisson needs load.request_rate"]),
    (partial(opened, load__burstiness=0.5), ["load.burstiness=0.5", "poisson", "gamma"]),
    (partial(opened, load__slowdown=0.5), ["load.slowdown=0.5", "poisson", "trace"]),
    (partial(opened, load__arrivals=ArrivalKind.trace), ["load.arrivals=trace", "not random_ids", "mooncake, azure"]),
    (partial(replayed, load__request_rate=2.0), ["load.request_rate=2", "load.slowdown"]),
    (partial(replayed, workload__files=[]), ["workload=mooncake reads one file", "workload.files=[FILE]"]),
    (partial(replayed, workload__max_input_len=None), ["workload=mooncake needs workload.max_input_len"]),
    (partial(replayed, workload__input_len=200), ["workload.input_len=200", "workload.max_input_len=300"]),
    (partial(replayed, workload__lengths=LengthKind.uniform), ["workload.lengths=uniform", "those of its file"]),
    (
        partial(replayed, workload__max_output_len=900, workload__output_len=900),
        ["max_output_len=900", "context_len=1024"],
    ),
    (partial(drawn, "fixed", workload__input_spread=0.3), ["workload.input_spread=0.3", "workload.lengths=fixed"]),
    (partial(drawn, "fixed", workload__max_input_len=99), ["workload.max_input_len=99", "workload.lengths=fixed"]),
    (
        partial(drawn, "uniform", workload__input_spread=0.5),
        ["workload.input_len=1152", "with its spread", "context_len=1024"],
    ),
    (partial(drawn, "uniform", workload__input_spread=1.0), ["workload.lengths=uniform", "below 1"]),
    (
        partial(drawn, "lognormal", workload__input_spread=1.0),
        ["needs workload.max_input_len", "workload.input_len=768"],
    ),
    (partial(drawn, "empirical"), ["needs workload.length_file"]),
    (partial(drawn, "uniform", workload__length_file="x"), ["workload.length_file=x", "workload.lengths=uniform"]),
    (partial(drawn, "uniform", workload__length_scale=2.0), ["workload.length_scale=2.0"]),
    (partial(closed, workload__kind=WorkloadKind.sharegpt), ["workload=sharegpt needs a tokenizer", "glm_tiny"]),
]


@pytest.mark.parametrize(("config", "parts"), BAD, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_what_does_not_go_together_is_refused_in_one_line(config: Callable[[], Config], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        complete(config())
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("workload", ["mooncake", "azure"])
def test_a_trace_is_chosen_on_the_command_line(workload: str) -> None:
    """From the group's own file: rows carry the limit, which the workload's file sets once."""
    overrides = [f"workload={workload}", "workload.files=[a.txt]", "load.mode=open", "load.arrivals=trace"]
    limits = ["workload.max_input_len=500", "workload.max_output_len=200"]
    config = _composed(*overrides, *limits, "load.num_requests=9", "load.requests_per_worker=null", *EXPERIMENT_LENGTHS)
    assert (config.workload.input_len, config.workload.output_len) == config.workload.longest == (500, 200)


# quickstart sets lengths of its own, which an experiment on a trace does not
EXPERIMENT_LENGTHS = ["workload.input_len=500", "workload.output_len=200"]


@pytest.mark.parametrize("workload", ["sharegpt", "longbench_v2"])
def test_text_files_of_prompts_need_a_real_model(workload: str) -> None:
    overrides = ["experiment=smollm2_quest", "offload=full_kv", f"workload={workload}", "workload.files=[a.json]"]
    limits = ["workload.input_len=1024", "workload.max_input_len=1024"]
    limits += ["workload.max_output_len=64"] if workload == "sharegpt" else []
    (config,) = load_cells([*overrides, *limits])
    assert config.workload.longest == (1024, 64)
