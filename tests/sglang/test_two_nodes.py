"""One real SGLang over two of three Ray nodes (tensor parallel 2, gloo): one leader, both ranks' logs, both ended."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from cluster_nodes import LOOPBACK, Nodes, three_nodes
from sweep_process import HANG_S, SweepProcess
from test_real_sglang import INPUT, OURS, OUTPUT, overrides, shape

from harness.store import read_env, read_rows

CORES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|0"}  # for each rank; else SGLang wants a NUMA node for each


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with three_nodes() as cluster:
        yield cluster


@contextmanager
def sweep(
    home: Path, nodes: Nodes, python: str, env: dict[str, str], *model: str
) -> Iterator[tuple[SweepProcess, float]]:
    """A sweep on the cluster, and a time (`time.time()`) before it that no process of it began at."""
    # no data-parallel attention: its ports follow from the meeting point, and two nodes of one machine would share them
    spans = (
        "engine.tensor_parallel=2",
        "engine.data_parallel=1",
        f"cluster.address={nodes.address}",
        "load.concurrencies=[2]",
    )
    own = overrides(python, env, home / "results", "model=qwen3_tiny", *model, *spans)
    began_s = time.time() - 1  # the kernel rounds a process's start
    run = SweepProcess(home / "run", own, env=OURS | LOOPBACK)
    try:
        yield run, began_s
    finally:
        run.kill_all()


def servers(since_s: float) -> list[str]:
    """Command lines or titles of what SGLang has running, wherever it hangs by now, of what began after that time."""
    found = []
    for process in psutil.process_iter():
        try:
            title = " ".join(process.cmdline()) if process.create_time() >= since_s else ""
        except psutil.Error:
            continue
        if "sglang.launch_server" in title or title.startswith("sglang::"):
            found.append(title)
    return found


def until_both_ranks(run: SweepProcess, since_s: float) -> list[str]:
    """What runs once there is something of each."""

    def both() -> list[str]:
        found = servers(since_s)
        return found if {rank for c in found for rank in re.findall(r"--node-rank (\d)", c)} == {"0", "1"} else []

    return run.until("both ranks", both)


def assert_none_left(since_s: float) -> None:
    deadline = time.monotonic() + HANG_S
    while left := servers(since_s):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


def test_one_server_over_two_nodes(
    nodes: Nodes, sglang_python: str, cpu_env: dict[str, str], tiny_model: Path, tmp_path: Path
) -> None:
    with sweep(tmp_path, nodes, sglang_python, cpu_env | CORES, *shape(tiny_model)) as (run, began_s):
        commands = until_both_ranks(run, began_s)
        assert run.end() == 0, run.said()
        assert_none_left(began_s)
    (row,) = read_rows(tmp_path / "results" / "quickstart").to_dict("records")
    assert row["status"] == "ok", row["reason"]
    assert row["total_output_tokens"] == row["num_requests"] * OUTPUT
    assert row["total_input_tokens"] == row["num_requests"] * INPUT
    assert row["decode_tokens"] == row["num_requests"] * (OUTPUT - 1)

    env = read_env(row["point_path"])
    first, second = env["instance"]["nodes"]
    assert first["node_id"] != second["node_id"] and {first["node_id"], second["node_id"]} < set(nodes.ids)
    assert env["loadgen"]["node_id"] not in (first["node_id"], second["node_id"])
    server = env["instance"]["server"]
    assert (server["tp_size"], server["nnodes"]) == (2, 2)
    address = server["dist_init_addr"]
    ranks = {re.search(r"--node-rank (\d)", c)[1]: c for c in commands if "--node-rank" in c}  # type: ignore[index]
    assert set(ranks) == {"0", "1"} and all(f"--dist-init-addr {address}" in c for c in ranks.values())

    log = (Path(row["point_path"]) / "server.log").read_text()
    leader, other = log.split("--- node rank 1\n")
    assert leader.startswith("--- node rank 0\n") and "TP0]" in leader and "TP1]" in other
    assert "/generate HTTP/1.1" in leader and "/generate HTTP/1.1" not in other


def test_a_rank_that_cannot_start_ends_the_whole_instance_with_its_own_words(
    nodes: Nodes, sglang_python: str, cpu_env: dict[str, str], tmp_path: Path
) -> None:
    """The second rank has no cores to run on (see CORES); the first would wait for it for ever."""
    with sweep(tmp_path, nodes, sglang_python, cpu_env) as (run, began_s):
        assert run.end() == 1, run.said()
        assert_none_left(began_s)
    (row,) = read_rows(tmp_path / "results" / "quickstart").to_dict("records")
    assert row["status"] == "failed" and "SGLANG_CPU_OMP_THREADS_BIND is not set" in row["reason"], row["reason"]
    assert "(try " not in row["reason"]  # it would fail again
    assert "--- node rank 1\n" in (Path(row["point_path"]) / "server.log").read_text()


def test_a_driver_killed_while_servers_start_leaves_none(
    nodes: Nodes, sglang_python: str, cpu_env: dict[str, str], tiny_model: Path, tmp_path: Path
) -> None:
    """Their processes are not yet at the point where they would notice: Ray's workers and `keeper` end them."""
    with sweep(tmp_path, nodes, sglang_python, cpu_env | CORES, *shape(tiny_model)) as (run, began_s):
        until_both_ranks(run, began_s)
        run.until("a process of the server's own", lambda: [c for c in servers(began_s) if c.startswith("sglang::")])
        run.send(signal.SIGKILL)
        assert_none_left(began_s)
