"""A Ray cluster of three nodes on this machine, in a process of its own: see three_nodes.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from sweep_process import HANG_S

# Ray's name for "use 127.0.0.1", where it needs no token
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


class Nodes:
    """The cluster's process, its address and the ids of its nodes, the head's first."""

    def __init__(self, folder: str):
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("three_nodes.py")), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | LOOPBACK | {"RAY_worker_niceness": "0"},
        )
        while not (line := self._process.stdout.readline()).startswith("{"):  # type: ignore[union-attr]
            assert line, "the cluster did not start"
        said = json.loads(line)
        self.address, self.ids = said["address"], said["nodes"]

    def kill(self, node_id: str) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"kill {node_id}\n")
        self._process.stdin.flush()
        while self._process.stdout.readline().strip() != "done":
            assert self._process.poll() is None

    def below(self) -> list[psutil.Process]:
        """All processes that descend from the cluster's."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(HANG_S)
        finally:
            for process in psutil.Process().children(recursive=True):
                if process.pid == self._process.pid:
                    process.kill()


@contextmanager
def three_nodes() -> Iterator[Nodes]:
    folder = tempfile.mkdtemp(prefix="r3-", dir="/tmp")  # Ray's sockets lie in it: their paths must be short
    cluster = Nodes(folder)
    try:
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
