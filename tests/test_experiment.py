"""From configs to work: what makes a cell, which points are left, what can never run, what counters mean."""

from __future__ import annotations

import copy
import enum
import functools
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import load_cells
from harness.engine.admission import FullOutput
from harness.experiment import Cell, Point, experiment_dir, in_run_order, plan, server_measures
from harness.identity import cell_id, defines_cell
from harness.records import SERVER_MEASURES, ServerStats, Status
from harness.schema import Config, OffloadSystem, from_yaml, to_yaml
from harness.store import write_point
from harness.validate import complete

NOT_A_CELL = {  # where, when and how often something is run, and what it is called
    "name",
    "description",
    "results_dir",
    "dry_run",
    "retry_failed",
    "break_lock",
    "grid",
    "cluster.address",
    "cluster.loadgen_cpus",
    "cluster.ready_timeout_s",
    "cluster.exclusive",
    "cluster.cell_timeout_s",
    "cluster.point_timeout_s",
    "cluster.retries",
    "cluster.retry_wait_s",
    "cluster.budget_s",
    "tracker.kind",
    "tracker.project",
    "tracker.entity",
    "tracker.mode",
    "engine.host",
    "engine.port",
    "engine.start_timeout_s",
    "load.concurrencies",
    "load.repeats",
    "load.connect_timeout_s",
    "load.first_token_timeout_s",
    "load.idle_timeout_s",
    "load.total_timeout_s",
    "load.processes",
    "load.max_lag_p99_ms",
    "load.max_lag_share",
    "load.max_cpu_share",
    "load.min_completed",
    "load.max_failed_share",
    "load.max_token_mismatch",
    "load.late_after_ms",
    "load.slo_ttft_ms",
    "load.slo_tpot_ms",
    "load.slo_e2el_ms",
}


@functools.cache
def _composed() -> Config:
    return load_cells(["experiment=quickstart", "offload=hisparse_sync"])[0]


def _config(results_dir: Path | str = "nowhere", **load: Any) -> Config:
    config = copy.deepcopy(_composed())
    config.results_dir = str(results_dir)
    for key, value in load.items():
        setattr(config.load, key, value)
    return complete(config)


# --- cells -------------------------------------------------------------------------------------------------------


def _leaves(owner: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(owner)
    for field in fields(owner):
        key = f"{above}{field.name}"
        if is_dataclass(hints[field.name]):
            yield from _leaves(hints[field.name], f"{key}.")
        else:
            yield key, hints[field.name]


def _another(value: Any, hint: Any) -> Any:
    """A value of a field's type that differs from `value`."""
    kinds = [h for h in (typing.get_args(hint) if isinstance(hint, types.UnionType) else [hint]) if h is not type(None)]
    kind = kinds[0]
    if kind is Any:
        return {"offload": ["full_kv"]}
    if isinstance(kind, enum.EnumMeta):
        return next((member for member in kind if member is not value), None)
    if typing.get_origin(kind) is list:
        return [*(value or []), *([99] if typing.get_args(kind) == (int,) else ["x"])]
    if typing.get_origin(kind) is dict:
        return {**(value or {}), "x": 1}
    if kind is bool:
        return not value
    if kind is str:
        return f"{value}x"
    return kind((value or 0) + 1)


LEAVES = dict(_leaves(Config))


@pytest.mark.parametrize("key", LEAVES)
def test_what_changes_a_cells_id(key: str) -> None:
    """Every key of the schema does, unless it is named above: a new one is covered by itself."""
    config = _config()
    *groups, name = key.split(".")
    owner = functools.reduce(getattr, groups, config)
    other = _another(getattr(owner, name), LEAVES[key])
    if other is None:
        pytest.skip(f"{key} has one value only")
    setattr(owner, name, other)
    assert (cell_id(config) == cell_id(_config())) == (key in NOT_A_CELL)
    assert defines_cell(key) == (key not in NOT_A_CELL)


def test_the_named_keys_exist() -> None:
    assert set(LEAVES) > NOT_A_CELL


def test_groups_define_cells_too() -> None:
    assert all(map(defines_cell, ("model", "selector", "platform", "offload", "engine", "workload")))
    assert not any(map(defines_cell, ("cluster", "tracker", "experiment", "grid")))


def test_an_id_is_readable_stable_and_a_folder_name() -> None:
    identity = cell_id(_config())
    assert re.fullmatch(r"hisparse_sync-glm_tiny-dsa-k64-B128-[0-9a-f]{8}", identity)
    assert cell_id(from_yaml(to_yaml(_config()))) == identity
    full = _config()
    full.offload.system = OffloadSystem.full_kv
    assert re.fullmatch(r"full_kv-glm_tiny-dsa-k64-[0-9a-f]{8}", cell_id(complete(full)))


def test_a_size_is_the_same_however_it_is_written() -> None:
    config = _config()
    config.engine.device_kv_budget = f"{config.engine.device_kv_budget} B"
    assert cell_id(complete(config)) == cell_id(_config())


def test_cells_of_a_model_run_one_after_another_in_the_order_of_the_grid() -> None:
    names = ["b", "a", "b", "a", "b"]
    systems = ["full_kv", "full_kv", "fetch_all", "fetch_all", "full_kv"]
    platforms = ["cpu", "cpu", "cpu", "cpu", "other"]
    cells = []
    for name, system, platform in zip(names, systems, platforms, strict=True):
        config = _config()
        config.model.name, config.offload.system, config.platform.name = name, OffloadSystem[system], platform
        cells.append(plan([complete(config)])[0])
    order = [(c.config.model.name, c.config.platform.name, c.config.offload.system.value) for c in in_run_order(cells)]
    assert order == [
        ("b", "cpu", "full_kv"),
        ("b", "cpu", "fetch_all"),
        ("b", "other", "full_kv"),
        ("a", "cpu", "full_kv"),
        ("a", "cpu", "fetch_all"),
    ]
    assert plan([cell.config for cell in cells]) == in_run_order(cells)  # the plan shows the order


# --- points ------------------------------------------------------------------------------------------------------


def _store(cell: Cell, point: Point, status: Status) -> None:
    row = cell.row(point, status, None if status is Status.OK else "why")
    folder = experiment_dir(cell.config)
    write_point(folder, row, [], config_yaml=to_yaml(cell.config), env={}, server_log="")


def test_points_are_concurrencies_times_repeats() -> None:
    (cell,) = plan([_config(concurrencies=[2, 8], repeats=2, requests_per_worker=3)])
    assert cell.points == (Point(2, 0, 6), Point(8, 0, 24), Point(2, 1, 6), Point(8, 1, 24))
    assert cell.done == ()
    (cell,) = plan([_config(concurrencies=[2, 8], requests_per_worker=None, num_requests=11)])
    assert [point.num_requests for point in cell.points] == [11, 11]


def test_stored_points_are_not_run_again(tmp_path: Path) -> None:
    config = _config(tmp_path, concurrencies=[1, 2, 4], repeats=2)
    (cell,) = plan([config])
    for point, status in zip(cell.points, (Status.OK, Status.FAILED, Status.INVALID, Status.INFEASIBLE), strict=False):
        _store(cell, point, status)
    (left,) = plan([config])
    assert left.points == cell.points[4:]
    assert left.done == cell.points[:4]
    config.retry_failed = True
    (again,) = plan([config])
    assert again.points == (*cell.points[1:3], *cell.points[4:])  # failed and invalid; infeasible stays so


def test_points_of_another_cell_or_experiment_do_not_count(tmp_path: Path) -> None:
    config = _config(tmp_path, concurrencies=[1])
    (cell,) = plan([config])
    _store(cell, cell.points[0], Status.OK)
    longer = copy.deepcopy(config)
    longer.workload.output_len += 1
    assert [len(c.points) for c in plan([config, longer])] == [0, 1]
    elsewhere = copy.deepcopy(config)
    elsewhere.name = "another"
    assert len(plan([elsewhere])[0].points) == 1


def test_a_row_carries_who_it_is() -> None:
    (cell,) = plan([_config(concurrencies=[4])])
    row = cell.row(cell.points[0], Status.OK, measures={"completed": 4})
    assert (row.experiment, row.cell_id, row.offload) == ("quickstart", cell.cell_id, "hisparse_sync")
    assert (row.top_k, row.cache_slots, row.concurrency, row.num_requests) == (64, 128, 4, 4)
    assert row.outputs_valid and row.measures == {"completed": 4}
    cell.config.offload.system = OffloadSystem.no_io_oracle
    assert not cell.row(cell.points[0], Status.OK).outputs_valid


# --- what fits ---------------------------------------------------------------------------------------------------


def _by_counting(config: Config) -> tuple[int, int, int]:
    """Device and host bytes of a request and the workspace, by walking over its positions, layers and slots."""
    model, record = config.model, 4 * (128 + 32)
    system = config.offload.system
    device = host = pages = 0
    for position in range(config.workload.input_len + config.workload.output_len):
        if position % config.engine.page_size == 0:
            pages += 1
            device += 4  # the page's number
        device += model.num_layers * 4 * 16  # the index key
    for _layer in range(model.num_layers):
        room = pages * config.engine.page_size * record
        if not system.offloads:
            device += room
            continue
        host += room
        for _slot in range(config.offload.cache_slots or 0):
            device += record + (0 if system is OffloadSystem.fetch_all else 8)
        device += record  # the newest position's
    return device, host, config.context_len * record if system.offloads else 0


@settings(max_examples=60)
@given(
    system=st.sampled_from(list(OffloadSystem)),
    slots=st.integers(64, 96),
    lengths=st.tuples(st.integers(1, 100), st.integers(1, 40)),
    page_size=st.sampled_from([1, 16, 48]),
    spare=st.integers(-2, 2),
    times=st.integers(0, 6),
    host_times=st.integers(0, 6),
    most=st.integers(1, 5),
)
def test_infeasible_and_capacity_are_what_counting_says(
    system: OffloadSystem,
    slots: int,
    lengths: tuple[int, int],
    page_size: int,
    spare: int,
    times: int,
    host_times: int,
    most: int,
) -> None:
    config = copy.deepcopy(_composed())
    config.offload.system, config.offload.cache_slots, config.offload.prefetch = system, slots, None
    config.workload.input_len, config.workload.output_len = lengths
    config.engine.page_size, config.engine.max_running_requests = page_size, most
    complete(config)
    device, host, workspace = _by_counting(config)
    config.engine.device_kv_budget = max(0, workspace + times * device + spare)
    config.engine.host_kv_budget = max(0, host_times * host + spare)
    (cell,) = plan([config])
    assert (cell.request.device, cell.request.host) == (device, host)

    fits = 0
    device_left, host_left = config.engine.device_kv_budget - workspace, config.engine.host_kv_budget
    while fits < most and device <= device_left and host <= host_left:
        fits, device_left, host_left = fits + 1, device_left - device, host_left - host
    assert cell.capacity == fits
    assert (cell.infeasible is None) == (fits > 0)
    if cell.infeasible:
        assert "raise engine." in cell.infeasible and "\n" not in cell.infeasible

    admission, admitted = FullOutput(config), 0
    while admitted < most and admission.reserve(admitted, *lengths):
        admitted += 1
    assert admitted == fits


# --- the server's counters ---------------------------------------------------------------------------------------


def test_counters_become_measures() -> None:
    share = ServerStats(
        decode_tokens=600,
        decode_seconds=3.0,
        decode_steps=150,
        lookups=4000,
        misses=1000,
        h2d_bytes=640_000,
        exposed_io_seconds=0.3,
        peak_running=4,
        device_kv_bytes=10,
        host_kv_bytes=20,
    )
    measures = server_measures(share)
    known = {name: value for name, value in measures.items() if value is not None}
    assert known == pytest.approx(
        {
            "decode_only_throughput": 200.0,
            "decode_seconds": 3.0,
            "hit_rate": 0.75,
            "lookups": 4000,
            "misses": 1000,
            "misses_per_step": 1000 / 150,
            "h2d_bytes": 640_000,
            "exposed_io_ms_per_token": 2.0,  # every step gives each running request one token
            "device_kv_bytes": 10,
            "host_kv_bytes": 20,
            "peak_running": 4,
            "decode_tokens": 600,
        }
    )
    assert set(measures) == set(SERVER_MEASURES)


def test_what_a_server_does_not_report_stays_unknown() -> None:
    assert set(server_measures(ServerStats()).values()) == {None}
    idle = server_measures(ServerStats(decode_tokens=0, decode_seconds=0.0, decode_steps=0, lookups=0, misses=0))
    assert idle["decode_tokens"] == 0
    assert {idle[name] for name in ("decode_only_throughput", "hit_rate", "misses_per_step")} == {None}
    perfect = server_measures(ServerStats(lookups=10, misses=0, decode_steps=5))
    assert (perfect["hit_rate"], perfect["misses_per_step"]) == (1, 0)
