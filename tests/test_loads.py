"""What is asked of the load generator for a point (pace, arrivals, lengths), and how the server's counter judges it."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from harness.config import load_cells
from harness.experiment import plan
from harness.loadgen.point import PointLoad, PointResult
from harness.loads import counts_disagree, point_loads, point_row, prompt_source
from harness.records import RequestRecord, ServerStats, Status
from harness.schema import ArrivalKind, Config, LoadMode, WorkloadKind
from harness.validate import complete


@functools.cache
def _composed() -> Config:
    return load_cells(["experiment=quickstart", "offload=full_kv", "load.concurrencies=[4]"])[0]


def _config(**settings: Any) -> Config:
    config = copy.deepcopy(_composed())
    for key, value in settings.items():
        group, name = key.split("__")
        setattr(getattr(config, group), name, value)
    return complete(config)


def _open(**settings: Any) -> Config:
    good = {
        "load__mode": LoadMode.open,
        "load__arrivals": ArrivalKind.poisson,
        "load__request_rate": 5.0,
        "load__requests_per_worker": None,
        "load__num_requests": 20,
    }
    return _config(**(good | settings))


def _loads(config: Config, repeat: int = 0) -> tuple[PointLoad, PointLoad | None]:
    (cell,) = plan([config])
    point = cell.points[repeat]
    return point_loads(config, point, prompt_source(config), "http://h:1")


def test_a_closed_loop_has_no_due_times() -> None:
    measured, warmup = _loads(_config())
    assert measured.due_s is None
    assert (measured.concurrency, len(measured.prompts)) == (4, 4)
    assert warmup is not None and warmup.concurrency == 1


def test_an_open_loop_has_a_due_time_for_each_prompt_and_a_closed_warm_up() -> None:
    measured, warmup = _loads(_open())
    assert measured.due_s is not None
    assert len(measured.due_s) == len(measured.prompts) == 20
    assert measured.due_s == sorted(measured.due_s)
    assert warmup is not None and warmup.due_s is None
    again, _ = _loads(_open())
    assert again.due_s == measured.due_s


def test_repeats_arrive_differently_and_systems_alike() -> None:
    one, two = (_loads(_open(load__repeats=2), repeat)[0].due_s for repeat in (0, 1))
    assert one != two
    other = _open()
    other.offload = load_cells(["experiment=quickstart", "offload=fetch_all"])[0].offload
    assert _loads(other)[0].due_s == _loads(_open())[0].due_s


def test_time_bounds_what_is_sent() -> None:
    measured, _ = _loads(_open(load__arrivals=ArrivalKind.constant, load__max_seconds=1.0))
    assert measured.due_s == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert len(measured.prompts) == 6


def test_a_trace_brings_lengths_and_times(tmp_path: Path) -> None:
    rows = [{"timestamp": 500 * i, "input_length": 40 + i, "output_length": 3 + i, "hash_ids": [i]} for i in range(5)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    limits = {f"workload__{key}": 100 for key in ("input_len", "output_len", "max_input_len", "max_output_len")}
    trace = {"workload__kind": WorkloadKind.mooncake, "workload__files": [str(path)], "load__num_requests": 5}
    replay = {"load__arrivals": ArrivalKind.trace, "load__request_rate": None, "load__slowdown": 0.5}
    config = _open(**(limits | trace | replay))
    measured, warmup = _loads(config)
    assert measured.due_s == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert [p.output_len for p in measured.prompts] == [3, 4, 5, 6, 7]
    assert warmup is not None and warmup.prompts[0].sha not in {p.sha for p in measured.prompts}
    (cell,) = plan([config])
    assert cell.row(cell.points[0], Status.FAILED, "x").input_len == 100  # the limit, as documented


def _request(tokens: int, error: str | None = None) -> RequestRecord:
    return RequestRecord(
        request_id="r",
        worker=0,
        prompt_sha="s",
        input_len=4,
        output_len=tokens,
        scheduled_s=0.0,
        sent_s=0.0,
        chunk_times_s=[float(i) for i in range(tokens)],
        chunk_tokens=[1] * tokens,
        end_s=float(tokens),
        error=error,
    )


@pytest.mark.parametrize(
    ("said", "allowed", "fine"),
    [(20, 0.0, True), (18, 0.0, True), (17, 0.0, False), (21, 0.0, False), (21, 0.05, True), (None, 0.0, True)],
)
def test_the_servers_counter_may_count_first_tokens_or_not(said: int | None, allowed: float, fine: bool) -> None:
    found = counts_disagree([_request(10), _request(10)], ServerStats(decode_tokens=said), allowed)
    assert (found is None) == fine
    if found:
        assert f"{said} generated tokens, 20 came" in found
    assert counts_disagree([_request(10), _request(3, "early_stop")], ServerStats(decode_tokens=said), 0.0) is None


def test_a_row_is_invalid_where_the_server_disagrees() -> None:
    (cell,) = plan([_config()])
    result = PointResult(requests=[_request(10)], measures={}, status=Status.OK, reason=None, count_source="usage")
    row = point_row(cell, cell.points[0], result, ServerStats(decode_tokens=99))
    assert row.status is Status.INVALID
    assert row.reason and "99 generated tokens" in row.reason
    assert row.measures["decode_tokens"] == 99
    assert point_row(cell, cell.points[0], result, ServerStats(decode_tokens=9)).status is Status.OK
