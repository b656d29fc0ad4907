"""Sweeps on a Ray cluster of three nodes: who runs where, and what becomes of a cell whose node is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster_nodes import LOOPBACK, Nodes, three_nodes
from sweep_process import HANG_S, SweepProcess, assert_nothing_left

from harness.store import read_env, read_rows

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with three_nodes() as cluster:
        yield cluster


def begin(nodes: Nodes, home: Path, *overrides: str) -> SweepProcess:
    own = ("experiment=quickstart", "tracker=none", "workload.input_len=64", f"results_dir={home / 'results'}")
    own += (f"cluster.address={nodes.address}",)
    return SweepProcess(home / "run", [*own, *overrides], env=LOOPBACK)


def stored(home: Path) -> tuple[dict[tuple[str, int], str], list[dict[str, Any]]]:
    rows = read_rows(home / "results" / "quickstart")
    statuses = zip(rows["offload"], rows["concurrency"], rows["status"], strict=True)
    return {(o, int(c)): s for o, c, s in statuses}, [read_env(Path(path)) for path in rows["point_path"]]


def test_bundles_lie_where_they_should(nodes: Nodes) -> None:
    command = [sys.executable, str(HERE / "place_groups.py"), nodes.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, env=os.environ | LOOPBACK)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    loadgen, two = said["loadgen"], said["two"]
    assert len(set(two)) == 2 and loadgen not in two  # strictly spread, away from the load generator
    assert said["ran_on"] == two  # rank 0 on the first
    assert said["spanning"]["url"].endswith("/1") and said["spanning"]["nodes"] == two  # rank 1 has met rank 0
    assert "node rank 0" in said["spanning"]["log"] and "node rank 1" in said["spanning"]["log"]
    assert (
        said["broken"]["may_pass"] and "actor is gone" in said["broken"]["error"]
    )  # the leader waits for it no longer
    assert {name for name, cpus in said["free_beside_two"].items() if cpus == 0} == set(two)  # owned, all CPUs
    assert "no room for 1 CPU on each of 4 nodes" in said["four"]
    (one,) = said["one"]
    assert one != loadgen and said["url"].startswith("http://127.0.0.1:")
    (described,) = said["described"]
    assert described["node_id"] == one and described["mismatches"] == []


def test_cells_side_by_side(nodes: Nodes, tmp_path: Path) -> None:
    run = begin(
        nodes,
        tmp_path,
        *("offload=full_kv,hisparse_sync,fetch_all", "cluster.exclusive=false"),
        *("load.concurrencies=[2]", "workload.output_len=200"),
    )
    try:
        assert run.end() == 0, run.said()
        assert_nothing_left(run)
    finally:
        run.kill_all()
    statuses, envs = stored(tmp_path)
    assert set(statuses.values()) == {"ok"} and len(statuses) == 3
    said = [env["scheduling"] for env in envs]
    assert not any(s["exclusive"] for s in said)
    assert sum(bool(s["beside"]) for s in said) >= 2  # three fit: at the least two have met
    loadgens = {env["loadgen"]["actor"]["pid"] for env in envs}
    assert len(loadgens) == 3


def test_a_lost_node_in_mid_cell(nodes: Nodes, tmp_path: Path) -> None:
    """The cell goes on elsewhere, and the sweep ends with all its rows. The last test: the node stays away."""
    run = begin(
        nodes,
        tmp_path,
        *("offload=full_kv,hisparse_sync", "load.concurrencies=[1,2]", "workload.output_len=600"),
        *("cluster.retry_wait_s=1", "load.warmup_requests=1"),
    )
    try:
        server = run.until("a server", lambda: _server_on(nodes))
        run.until("the first row", lambda: list((tmp_path / "results").rglob("c1-r0")))
        node_id = _server_on(nodes) or server
        nodes.kill(node_id)
        assert run.end() == 0, run.said()
        assert_nothing_left(run)
    finally:
        run.kill_all()
    statuses, envs = stored(tmp_path)
    assert statuses == {(o, c): "ok" for o in ("full_kv", "hisparse_sync") for c in (1, 2)}, run.said()
    assert "Traceback" not in run.said()
    again = [env for env in envs if env["scheduling"]["tries"] > 1]
    assert again and all(env["scheduling"]["failures"] for env in again)
    for env in envs:
        (where,) = env["instance"]["nodes"]
        assert where["node_id"] != env["loadgen"]["node_id"] or not _elsewhere(env, nodes, node_id)
        assert env["scheduling"]["exclusive"]
    assert any(env["instance"]["nodes"][0]["node_id"] == node_id for env in envs)  # before it was lost
    assert all(env["instance"]["nodes"][0]["node_id"] != node_id for env in again)
    assert "try 2 of 3" in run.stdout


def _server_on(nodes: Nodes) -> str | None:
    """The node on which a server of ours runs: of the raylet that its actor descends from."""
    for process in psutil.process_iter():
        try:
            if "harness.engine.server" not in process.cmdline():
                continue
            for parent in process.parents():
                for word in parent.cmdline():
                    if word.startswith("--node_id=") and word.partition("=")[2] in nodes.ids:
                        return word.partition("=")[2]
        except psutil.Error:
            continue
    return None


def _elsewhere(env: dict[str, Any], nodes: Nodes, lost: str) -> bool:
    """Whether there was another node than the load generator's to run on."""
    return bool(set(nodes.ids) - {lost, env["loadgen"]["node_id"]})
