"""The machine's description against psutil, platform and git itself."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from harness import sysinfo


def test_machine_agrees_with_psutil_and_platform() -> None:
    found = sysinfo.machine()
    assert json.loads(json.dumps(found)) == found
    assert found["host"] == platform.node()
    assert found["kernel"] == platform.release()
    assert found["logical_cores"] == psutil.cpu_count()
    assert 1 <= found["usable_cores"] <= found["logical_cores"]
    assert found["memory_bytes"] == psutil.virtual_memory().total
    assert found["python"] == platform.python_version()
    assert found["packages"]["numpy"] == metadata.version("numpy")
    assert set(found["cpu_flags"]) <= set(sysinfo.CPU_FLAGS)


def test_it_imports_nothing_heavy_and_tells_no_secret() -> None:
    code = (
        "import json, sys; from harness.sysinfo import machine; text = json.dumps(machine());"
        "print(text); print(sorted({'torch', 'ray', 'transformers', 'wandb', 'numpy'} & set(sys.modules)))"
    )
    env = os.environ | {"WANDB_API_KEY": "s3cret-key", "HF_TOKEN": "s3cret-token"}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    assert "s3cret" not in result.stdout


def test_cpu_info_reads_the_first_cpu(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("model name\t: Fast CPU\nflags\t\t: fpu avx2 avx512f amx_bf16 sse\n\nmodel name\t: Other\n")
    assert sysinfo.cpu_info(file) == {"model": "Fast CPU", "flags": ["avx2", "avx512f", "amx_bf16"]}
    assert sysinfo.cpu_info(tmp_path / "none")["flags"] == []


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            "echo 'NVIDIA H200, 143771, 570.10, GPU-1'; echo 'NVIDIA GB10, [N/A], 580.1, GPU-2'",
            [
                {"name": "NVIDIA H200", "memory_bytes": 143771 << 20, "driver": "570.10", "uuid": "GPU-1"},
                {"name": "NVIDIA GB10", "memory_bytes": None, "driver": "580.1", "uuid": "GPU-2"},
            ],
        ),
        ("echo 'No devices were found'", []),
        ("echo 'driver mismatch'; exit 9", []),
    ],
)
def test_gpus_from_nvidia_smi(
    script: str, expected: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert sysinfo.gpus() == expected


def test_no_nvidia_smi_means_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sysinfo.gpus() == []


def git(root: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), *identity, *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_checkout_tells_commit_and_dirt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, other = tmp_path / "repo", tmp_path / "other"
    for folder in (root, other):
        folder.mkdir()
        git(folder, "init", "-q")
    assert sysinfo.checkout(root) == {"git_commit": None, "git_dirty": False}  # nothing committed yet
    git(root, "commit", "-q", "--allow-empty", "-m", "one")
    commit = git(root, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))  # as inside a git hook
    assert sysinfo.checkout(root) == {"git_commit": commit, "git_dirty": False}
    (root / "new.py").touch()
    assert sysinfo.checkout(root) == {"git_commit": commit, "git_dirty": True}


def test_a_folder_inside_a_checkout_is_not_one(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    site_packages = tmp_path / ".venv" / "site-packages"
    site_packages.mkdir(parents=True)
    assert sysinfo.checkout(site_packages) == {"git_commit": None, "git_dirty": None}


def test_free_memory_is_the_machine_s_without_a_limit(tmp_path: Path) -> None:
    total = psutil.virtual_memory().total
    assert 0 < sysinfo.free_memory_bytes(tmp_path) < total
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert sysinfo.free_memory_bytes(tmp_path) > 1 << 20


def test_a_container_s_share_of_the_cores(tmp_path: Path) -> None:
    everything = len(os.sched_getaffinity(0))
    assert sysinfo.usable_cores(tmp_path) == everything
    for text, cores in (
        ("max 100000", everything),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("9900000 100000", None),
    ):
        (tmp_path / "cpu.max").write_text(f"{text}\n")
        assert sysinfo.usable_cores(tmp_path) == (cores or min(99, everything))


def test_a_container_s_memory_limit(tmp_path: Path) -> None:
    assert sysinfo.memory_limit_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert sysinfo.memory_limit_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("12345\n")
    assert sysinfo.memory_limit_bytes(tmp_path) == 12345


def test_free_memory_respects_a_container_s_limit(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    assert sysinfo.free_memory_bytes(tmp_path) == 100
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\nactive_file 100\n")
    assert sysinfo.free_memory_bytes(tmp_path) == 400
    (tmp_path / "memory.current").write_text("1400\n")
    assert sysinfo.free_memory_bytes(tmp_path) == 0
