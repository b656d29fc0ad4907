"""A simulated experiment through the same command, rows, store and report as a measured one, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import __main__ as harness_main
from harness import store
from harness.cluster import Cluster
from harness.records import Status

FIG8 = ["experiment=fig8", "tracker=none", "workload.output_len=64", "load.concurrencies=[8,32]"]


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a simulation started a cluster")

    monkeypatch.setattr(Cluster, "open", opened)


@pytest.mark.slow
def test_rows_figures_and_report_say_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = [*FIG8, f"results_dir={tmp_path}", "offload=full_kv,hisparse_prefetch"]
    assert harness_main.main(run) == 0
    rows = store.read_rows(tmp_path / "fig8")
    assert set(rows["engine"]) == set(rows["count_source"]) == {"simulated"}
    assert set(rows["status"]) == {Status.OK.value} and len(rows) == 4
    assert (rows["total_output_tokens"] == rows["concurrency"] * 64).all()
    assert rows["hit_rate"].notna().sum() == 2  # full KV looks nothing up
    requests = store.read_requests(rows["point_path"].iloc[0])
    assert set(requests["count_source"]) == {"simulated"}
    assert "simulated" in (tmp_path / "fig8" / "figures" / "report.html").read_text()
    assert "simulated" in capsys.readouterr().out
    env = json.loads((Path(rows["point_path"].iloc[0]) / "env.json").read_text())
    assert env["instance"] is None  # no machine was measured
    assert harness_main.main(run) == 0  # all on disk: nothing runs again
    assert "everything is done: 4 points" in capsys.readouterr().out


def test_what_cannot_fit_is_a_row_with_its_reason(tmp_path: Path) -> None:
    long = [
        *FIG8,
        f"results_dir={tmp_path}",
        "offload=full_kv",
        "engine.context_len=400000",
        "workload.input_len=300000",
    ]
    assert harness_main.main(long) == 0
    rows = store.read_rows(tmp_path / "fig8")
    assert set(rows["status"]) == {Status.INFEASIBLE.value}
    assert rows["reason"].str.contains("device KV").all()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["load.requests_per_worker=null"], "set exactly one of load.num_requests (N)"),
        (["platform=gh200"], "model=glm52 needs"),
        (["platform=cpu"], "platform=cpu has no platform.memory_bandwidth"),
        (["platform.device_memory=null"], "platform=h200x8 has no platform.device_memory"),
        (["engine.data_parallel=3"], "must divide platform.num_devices=8"),
        (["platform.costs.layer_s.value=-1"], "platform.costs.layer_s.value=-1.0 must be above 0"),
        (["platform.costs.request_s.value=0.001"], "platform.costs.request_s.source must say"),
    ],
)
def test_refusals_are_one_line(
    overrides: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness_main.main([*FIG8, f"results_dir={tmp_path}", *overrides]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
