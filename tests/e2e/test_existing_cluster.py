"""A run on a Ray cluster that was there before and is there afterwards."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from sweep_process import HANG_S, SERVER, Start, SweepProcess, assert_nothing_left

from harness.records import Status
from harness.store import read_rows

# Ray's name for "use 127.0.0.1", where it needs no token
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}
_STATE = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
groups = [group["state"] for group in ray.util.placement_group_table().values()]
print(json.dumps({"groups": groups, "free": ray.available_resources().get("CPU")}))
"""


@dataclass(frozen=True)
class Running:
    """A cluster of one node with 4 CPUs, whose Python has no harness installed."""

    process: SweepProcess
    address: str
    python: str

    def state(self) -> dict[str, object]:
        command = [self.python, "-c", _STATE, self.address]
        env = {"PATH": "/usr/bin:/bin", **LOOPBACK, "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, env=env)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def is_free(self) -> bool:
        state = self.state()
        return state["free"] == 4 and set(state["groups"]) <= {"REMOVED"}  # type: ignore[call-overload]


def free_port() -> int:
    """One that stays free until it is used: the kernel gives those below 32768 to nobody by itself."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", random.randint(20_000, 30_000))) as probe:
            return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, bare_python: str) -> Iterator[Running]:
    port = free_port()
    short = tempfile.mkdtemp(prefix="e2e-", dir="/tmp")  # Ray's sockets lie in it: their paths must be short
    process = SweepProcess(
        tmp_path_factory.mktemp("cluster"),
        [
            *("start", "--head", "--block", "--disable-usage-stats", "--include-dashboard=false"),
            *("--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=4", f"--temp-dir={short}"),
            f"--object-store-memory={100 << 20}",
        ],
        python=bare_python,
        module="ray.scripts.scripts",
        env=LOOPBACK,
    )
    try:
        process.until("the cluster", lambda: "Ray runtime started" in process.stdout)
        yield Running(process, f"127.0.0.1:{port}", bare_python)
        process.send(signal.SIGTERM)
        process.end()
        assert_nothing_left(process)
    finally:
        process.kill_all()
        shutil.rmtree(short, ignore_errors=True)


def test_a_run_leaves_the_cluster_as_it_was(cluster: Running, start: Start, results: Path) -> None:
    """Its nodes get the code of the driver: nothing of ours is installed there."""
    run = start("offload=full_kv", "tracker=none", f"cluster.address={cluster.address}", env=LOOPBACK)
    run.until("a server on the cluster", lambda: cluster.process.watch.find(SERVER))
    assert run.end() == 0, run.said()
    assert_nothing_left(run)
    rows = read_rows(results)
    assert list(rows["status"]) == [Status.OK.value] * 2
    assert cluster.process.running
    assert cluster.process.watch.find(SERVER) == []
    cluster.process.until("a free cluster", cluster.is_free)


def test_a_killed_driver_frees_the_cluster(cluster: Running, start: Start) -> None:
    long = ("offload=full_kv", "tracker=none", "workload.output_len=900", "load.concurrencies=[2]")
    run = start(*long, f"cluster.address={cluster.address}", env=LOOPBACK)
    cluster.process.until_measuring(2)
    run.send(signal.SIGKILL)
    run.end()
    assert_nothing_left(run)
    cluster.process.until("no server", lambda: not cluster.process.watch.find(SERVER))
    cluster.process.until("a free cluster", cluster.is_free)


def test_an_address_where_nobody_listens_is_refused_in_one_line(start: Start) -> None:
    run = start("offload=full_kv", "cluster.address=127.0.0.1:1")
    assert run.end() == 2
    assert run.stderr.startswith("error: cluster.address=127.0.0.1:1: ") and run.stderr.count("\n") == 1
    assert_nothing_left(run)
