"""A whole sweep as a user runs it: files, numbers, figures, W&B, and the same command again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from sweep_process import Finished, Start, mtimes, points
from wandb_files import stored_runs

from harness.engine.footprint import Footprint
from harness.loadgen.native import reader_here
from harness.records import Status
from harness.schema import from_yaml
from harness.store import read_env, read_requests, read_row, read_rows

FILES = {"config.yaml", "result.json", "requests.parquet", "server.log", "env.json"}
OUTPUT_LEN = 60
GIB = 1 << 30


def test_every_point_is_on_disk_with_all_its_files(finished: Finished) -> None:
    found = list(points(finished.folder))
    assert len(found) == 4
    for point in found:
        assert {path.name for path in point.iterdir()} == FILES
        row, requests, config = read_row(point), read_requests(point), from_yaml((point / "config.yaml").read_text())
        assert row.status is Status.OK
        assert len(requests) == row.num_requests == row.concurrency
        assert requests["error"].isna().all()
        assert (requests["output_tokens"] == OUTPUT_LEN).all()
        assert requests["prompt_sha"].is_unique
        assert config.offload.system.value == row.offload


def test_the_measures_add_up(finished: Finished) -> None:
    for point in points(finished.folder):
        row, config = read_row(point), from_yaml((point / "config.yaml").read_text())
        m = row.measures
        assert (m["completed"], m["failed"]) == (row.num_requests, 0)
        assert m["total_input_tokens"] == row.num_requests * 64
        assert m["total_output_tokens"] == row.num_requests * OUTPUT_LEN
        assert m["output_throughput"] == pytest.approx(m["total_output_tokens"] / m["duration_s"])
        assert 0 < m["mean_ttft_ms"] <= m["p99_ttft_ms"] <= m["p99_e2el_ms"]
        assert m["peak_running"] == row.concurrency  # all of them fit into the budget
        need = Footprint(config).request(64 + OUTPUT_LEN)
        assert m["device_kv_bytes"] == row.concurrency * need.device <= config.engine.device_kv_budget
        assert m["host_kv_bytes"] == row.concurrency * need.host
        if row.offload == "full_kv":
            assert m["hit_rate"] is None
            assert m["h2d_bytes"] == 0
        else:  # B = 128 slots hold a context of 124
            assert m["hit_rate"] == 1.0


def test_the_log_of_a_point_is_what_the_server_said_during_it(finished: Finished) -> None:
    """Its start belongs to the first."""
    for cell in finished.folder.glob("*-glm_tiny-*"):
        first, second = ((cell / name / "server.log").read_text() for name in ("c1-r0", "c4-r0"))
        assert "serving glm_tiny" in first
        assert second == ""


def test_load_generator_server_and_driver_are_processes_of_their_own(finished: Finished) -> None:
    groups = set()
    for point in points(finished.folder):
        env = read_env(point)
        instance, loadgen = env["instance"], env["loadgen"]
        assert loadgen["reader"] == reader_here()
        pids = {instance["server_pid"], instance["actor"]["pid"], loadgen["actor"]["pid"], finished.run.pid}
        assert len(pids) == 4
        assert instance["actor"]["placement_group"] != loadgen["actor"]["placement_group"]
        groups |= {instance["actor"]["placement_group"], loadgen["actor"]["placement_group"]}
        assert instance["actor"]["nice"] == loadgen["actor"]["nice"] == os.nice(0)  # as ours: Ray would add 15
    assert len(groups) == 3  # one a cell, and the load generator's
    assert all(set(group) - {"f"} for group in groups)  # Ray's id of nothing is all f


def test_figures_and_report_are_there(finished: Finished) -> None:
    figures = finished.folder / "figures"
    for name in ("overview", "throughput", "ttft", "tpot"):
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (figures / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert "HiSparse" in (figures / "report.html").read_text()
    assert f"report: {figures / 'report.html'}" in finished.run.stdout
    assert finished.run.stderr == ""


def test_wandb_has_a_run_per_cell_and_a_report(finished: Finished) -> None:
    runs = stored_runs(finished.folder)
    rows = read_rows(finished.folder)
    cells = sorted(set(rows["cell_id"]))
    assert sorted(runs) == sorted([*cells, "report"])
    for cell in cells:
        mine = rows[rows["cell_id"] == cell]
        assert runs[cell].config["offload"]["system"] == mine["offload"].iloc[0]
        logged = {p["concurrency"]: p["output_throughput"] for p in runs[cell].points}
        assert logged == dict(zip(mine["concurrency"], mine["output_throughput"], strict=True))
    media = list(finished.folder.glob("wandb/offline-run-*/files/media/**/*.png"))
    drawn = {path.read_bytes() for path in (finished.folder / "figures").glob("*.png")}
    assert {path.read_bytes() for path in media} == drawn


def test_a_small_run_takes_little_memory(finished: Finished) -> None:
    peak = finished.run.watch.peak_pss
    print(f"\npeak memory of a small run, all processes together: {peak / GIB:.2f} GiB (PSS)")
    assert 0.3 * GIB < peak < 6e9


def test_the_same_command_again_does_nothing_and_one_more_concurrency_only_that(
    finished: Finished, start: Start, results: Path
) -> None:
    shutil.copytree(finished.folder, results)
    before = mtimes(results)
    again = start("offload=full_kv,hisparse_sync", name="again")
    assert again.end() == 0, again.said()
    assert "everything is done: 4 points" in again.stdout
    assert not again.watch.ever("raylet")
    assert mtimes(results) == before

    more = start("offload=full_kv,hisparse_sync", "load.concurrencies=[1,2,4]", name="more")
    assert more.end() == 0, more.said()
    after = mtimes(results)
    assert {name: after[name] for name in before} == before
    new = {Path(name).parts[1] for name in after if name not in before}
    assert new == {"c2-r0"}
    assert len(read_rows(results)) == 6
