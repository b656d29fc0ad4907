"""Connecting: a Ray of this run's own on this machine, or a cluster that is there already."""

from __future__ import annotations

import functools
import importlib
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from harness.cluster.errors import ClusterError, first_line
from harness.interrupts import rearm, shielded

REACH_TIMEOUT_S = 5.0
MOST_TIMES_OVER = 8  # a local Ray may be promised more cores than there are, up to this
LONGEST_TEMP_DIR = 36
_PACKAGES = ("harness", "workloads", "hisparse_kernels")  # what a worker of an existing cluster is given of ours


def connect(address: str | None, needed_cpus: float) -> None:
    """Raises ClusterError."""
    try:
        if address is None:
            with shielded():  # Ray is not made to be interrupted while it starts
                _start_local(needed_cpus)
        else:
            _join(address)
            rearm()
    except (ValueError, RuntimeError, OSError) as error:
        if address is None:
            raise ClusterError(f"a local Ray did not start: {first_line(error)}") from error
        hint = "set RAY_AUTH_MODE=token if it asks for one, or cluster.address=null for a local Ray"
        raise ClusterError(f"cluster.address={address}: {first_line(error)}; {hint}") from error
    except SystemExit as error:  # what Ray makes of a SIGTERM while it connects
        raise KeyboardInterrupt from error


def disconnect() -> None:
    """End a local Ray, leave a joined one."""
    with shielded():
        _ray().shutdown()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its new default, without the warning
    import ray

    return ray


def _start_local(needed_cpus: float) -> None:
    """A Ray of this machine's own, on loopback only, its workers at the priority of any other process.

    A machine with fewer cores than asked for runs all the same, more slowly; ValueError far beyond that.
    """
    cores = os.cpu_count() or 1
    if needed_cpus > MOST_TIMES_OVER * cores:
        raise ValueError(f"{needed_cpus:g} CPUs asked for, this machine has {cores}: lower platform.num_cpus")
    # Without this, whose name fits other systems, Ray listens on every interface. It is read at Ray's import.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else servers and clients run at 15, behind everything
    with _apart():
        _ray().init(
            address="local",
            _node_ip_address="127.0.0.1",
            num_cpus=int(max(cores, -(-needed_cpus // 1))),
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=False,
            logging_level="error",
            # None: RAY_TMPDIR or TMPDIR; Ray's sockets lie below it, and a socket's path is at most 107 bytes
            _temp_dir="/tmp/ray" if len(tempfile.gettempdir()) > LONGEST_TEMP_DIR else None,
        )


@contextmanager
def _apart() -> Iterator[None]:
    """Have what Ray starts in process groups of their own: a signal to ours (`timeout`, a closed terminal) is for us to
    answer, and an orderly end needs a Ray that is still there.
    """
    from ray._private import services

    popen = services.ConsolePopen
    services.ConsolePopen = functools.partial(popen, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = popen


def _join(address: str) -> None:
    """Connect to an existing cluster. Its workers get the code this process runs, whatever is installed there."""
    named = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    parts = urlsplit(f"gcs://{named}")
    if parts.hostname and parts.port:  # say at once where nobody listens: Ray would try for minutes
        socket.create_connection((parts.hostname, parts.port), timeout=REACH_TIMEOUT_S).close()
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")  # not a line for each try to connect
    modules = [str(Path(importlib.import_module(name).__path__[0])) for name in _PACKAGES]
    _ray().init(address=address, runtime_env={"py_modules": modules}, log_to_driver=False, logging_level="error")


def local_agents() -> list[int]:
    """Helpers of a local Ray that go on for a minute when it is killed with this process. None of a joined one's."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith(("ray::DashboardA", "ray::RuntimeEnv")):
                found.append(process.pid)
    return found
