"""What machine and what software produced a result: written beside every point, printed by

    python -m harness.sysinfo

It reads /proc, psutil, package metadata, git and nvidia-smi; nothing of the environment's variables.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("hisparse-harness", "torch", "ray", "numpy", "transformers", "wandb")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""The instruction sets that decide how fast float32 and bfloat16 run on a CPU."""
_GPU_QUERY = ("name", "memory.total", "driver_version", "uuid")
_TIMEOUT_S = 30.0
_GPU_TIMEOUT_S = 60.0  # without persistence mode nvidia-smi first brings the driver up, on every GPU
_ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, Any]:
    """One JSON-serialisable description, sizes in bytes; what cannot be found out is None (no GPU: [])."""
    cpu = cpu_info()
    return {
        "host": platform.node(),
        "os": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu_model": cpu["model"],
        "cpu_flags": cpu["flags"],
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(logical=True),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": memory_limit_bytes(),
        "gpus": gpus(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        **checkout(_ROOT),
    }


@functools.cache
def own_machine() -> dict[str, Any]:
    """`machine()` as it was when this process first asked: what it runs and runs on does not change under it, and
    asking git and nvidia-smi again would take a tenth of a second for every point."""
    return machine()


def boot_id(file: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """What only processes of one machine share, and with it one clock; by name where the kernel gives none."""
    return _read(file) or platform.node()


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may run on, or the whole ones of a container's share of them, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota, _, period = (_read(cgroup / "cpu.max") or "max").partition(" ")
    return allowed if quota.strip() == "max" else max(1, min(allowed, int(quota) // int(period)))


def memory_limit_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """A container's limit on host memory; None without one."""
    limit = (_read(cgroup / "memory.max") or "max").strip()
    return None if limit == "max" else int(limit)


def free_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Host memory that a new process could take: the machine's, or less where a container's limit is near.

    `cgroup` is the cgroup v2 folder that holds the limit.
    """
    available = psutil.virtual_memory().available
    limit = memory_limit_bytes(cgroup)
    used = _read(cgroup / "memory.current")
    if limit is None or used is None:
        return available
    return min(available, max(0, limit - int(used) + _reclaimable(cgroup)))


def cpu_info(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """`{"model": str | None, "flags": [those of CPU_FLAGS it has]}` of the first CPU."""
    pairs: dict[str, str] = {}
    for line in (_read(cpuinfo) or "").splitlines():
        key, _, value = line.partition(":")
        pairs.setdefault(key.strip(), value.strip())
    has = set(pairs.get("flags", "").split())
    return {
        "model": pairs.get("model name") or platform.processor() or None,
        "flags": [f for f in CPU_FLAGS if f in has],
    }


def gpus() -> list[dict[str, Any]]:
    """Name, memory, driver and UUID of each GPU nvidia-smi reports, in its order; [] without one."""
    query = f"--query-gpu={','.join(_GPU_QUERY)}"
    output = _output(["nvidia-smi", query, "--format=csv,noheader,nounits"], _GPU_TIMEOUT_S)
    rows = [[cell.strip() for cell in line.split(",")] for line in (output or "").splitlines()]
    return [
        {"name": name, "memory_bytes": int(mib) << 20 if mib.isdigit() else None, "driver": driver, "uuid": uuid}
        for name, mib, driver, uuid in (
            row for row in rows if len(row) == len(_GPU_QUERY)
        )  # not "No devices were found"
    ]


def checkout(root: Path) -> dict[str, Any]:
    """`{"git_commit", "git_dirty"}` of the source checkout at `root`; both None when it is not one.

    Untracked files count as dirty. An installed package lies inside no checkout of its own, even where
    its environment lies in some repository, so `root` itself must hold `.git`.
    """
    if not (root / ".git").exists():
        return {"git_commit": None, "git_dirty": None}
    git = ["git", "--no-optional-locks", "-C", str(root)]
    commit, status = _output([*git, "rev-parse", "HEAD"]), _output([*git, "status", "--porcelain"])
    return {
        "git_commit": commit.strip() if commit is not None else None,
        "git_dirty": bool(status.strip()) if status is not None else None,
    }


def _output(command: list[str], timeout_s: float = _TIMEOUT_S) -> str | None:
    """What a command prints; None when it is not there, fails or takes too long."""
    # In a git hook GIT_DIR points at some repository and would override -C.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        result = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout


def _reclaimable(cgroup: Path) -> int:
    """Bytes of file cache that the kernel drops under pressure, counted in memory.current."""
    for line in (_read(cgroup / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == "inactive_file":
            return int(value)
    return 0


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


if __name__ == "__main__":
    print(json.dumps(machine(), indent=2))
