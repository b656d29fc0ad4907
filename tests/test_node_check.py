"""The node that was given against the config, on what nvidia-smi says on real machines of each platform."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import sysinfo
from harness.actors import InstanceActor, OfflineActor
from harness.config import load_cells
from harness.instances import Place
from harness.node_check import check_node, refusal
from harness.schema import Config, EngineKind

# name, MiB: as nvidia-smi prints them for the devices that conf/platform describes
H200 = ("NVIDIA H200", 143771)
H100 = ("NVIDIA H100 80GB HBM3", 81559)
A100 = ("NVIDIA A100-SXM4-80GB", 81920)
A100_SMALL = ("NVIDIA A100-SXM4-40GB", 40960)
B200 = ("NVIDIA B200", 183359)
GH200 = ("NVIDIA GH200 480GB", 97871)
TB = 10**12


@functools.cache
def _composed(platform: str) -> Config:
    (cell,) = load_cells(["experiment=quickstart", "offload=full_kv", f"platform={platform}"])
    return cell


def config(platform: str, **keys: Any) -> Config:
    out = copy.deepcopy(_composed(platform))
    if out.platform.accelerator:
        out.engine.kind, out.engine.tensor_parallel = EngineKind.sglang, out.platform.num_devices
    for key, value in keys.items():
        setattr(out.platform, key, value)
    return out


def machine(
    gpu: tuple[str, int] | None = None, count: int = 0, memory: int = 2 * TB, cores: int = 96
) -> dict[str, Any]:
    return {
        "host": "n1",
        "usable_cores": cores,
        "memory_bytes": memory,
        "memory_limit_bytes": None,
        "gpus": [
            {"name": gpu[0], "memory_bytes": gpu[1] << 20, "driver": "570.86.15", "uuid": f"GPU-{i}"}
            for i in range(count)
        ]
        if gpu
        else [],
    }


@pytest.mark.parametrize(
    ("platform", "gpu", "count", "memory"),
    [
        ("h200x8", H200, 8, 2_164_000_000_000),
        ("h100x8", H100, 8, 2_164_000_000_000),
        ("a100x8", A100, 8, 2_051_000_000_000),
        ("b200x2", B200, 2, 2_164_000_000_000),
        ("gh200", GH200, 1, 502_000_000_000),
    ],
)
def test_real_nodes_of_every_platform_pass(platform: str, gpu: tuple[str, int], count: int, memory: int) -> None:
    cell = config(platform)
    found = check_node(cell, machine(gpu, count, memory), None, count, True)
    assert found["mismatches"] == [] and refusal(cell, found) is None
    assert len(found["gpus"]) == count and found["gpus"][0]["driver"] == "570.86.15"


@pytest.mark.parametrize(
    ("platform", "keys", "found", "said"),
    [
        ("h200x8", {}, machine(H100, 8), "GPU NVIDIA H100 80GB HBM3, not H200"),
        ("h200x8", {}, machine(GH200, 8), "GPU NVIDIA GH200 480GB, not H200"),
        ("h200x8", {}, machine(H200, 4), "4 GPUs, not 8"),
        ("h200x8", {}, machine(), "no GPU that nvidia-smi reports, not 8"),
        ("a100x8", {}, machine(A100_SMALL, 8), "40 GiB of memory on NVIDIA A100-SXM4-40GB, not 80 GiB"),
        ("h200x8", {}, machine(H200, 8, memory=TB), "of host memory, not 1.82 TiB (platform.host_memory)"),
        ("h200x8", {"driver": "575"}, machine(H200, 8), "driver 570.86.15, not 575"),
        ("h200x8", {"driver": "570.8"}, machine(H200, 8), "driver 570.86.15, not 570.8"),
        ("cpu", {"num_cpus": 8}, machine(cores=4), "4 CPU cores, not 8 (platform.num_cpus)"),
        ("cpu", {"memory": 64 << 30}, machine(memory=32 << 30), "32 GiB of host memory, not 64 GiB (platform.memory)"),
    ],
)
def test_another_node_is_refused_in_one_line(platform: str, keys: dict, found: dict, said: str) -> None:
    cell = config(platform, **keys)
    devices = cell.platform.num_devices if cell.platform.accelerator else 0
    line = refusal(cell, check_node(cell, found, None, devices, True))
    assert line is not None and said in line
    assert "n1" in line and f"platform={platform}" in line and "\n" not in line


def test_a_driver_is_compared_as_far_as_it_is_given() -> None:
    for wanted in ("570", "570.86", "570.86.15"):
        assert check_node(config("h200x8", driver=wanted), machine(H200, 8), None, 8, True)["mismatches"] == []


def test_only_the_gpus_that_were_given_count() -> None:
    mixed = machine(H200, 8)
    mixed["gpus"][7] = {"name": "NVIDIA T4", "memory_bytes": 15 << 30, "driver": "570.86.15", "uuid": "GPU-7"}
    cell = config("h200x8")
    assert check_node(cell, mixed, "0,1,2,3", 4, True)["mismatches"] == []
    assert check_node(cell, mixed, "GPU-0,GPU-1", 2, True)["mismatches"] == []
    assert "NVIDIA T4" in str(check_node(cell, mixed, "6,7", 2, True)["mismatches"])
    assert "2 GPUs, not 4" in check_node(cell, mixed, "0,1", 4, True)["mismatches"]
    assert "unknown to nvidia-smi" in str(check_node(cell, mixed, "MIG-1", 1, True)["mismatches"])


def test_a_container_s_limit_is_the_memory_there_is() -> None:
    found = machine(H200, 8) | {"memory_limit_bytes": TB}
    assert "931 GiB of host memory" in str(check_node(config("h200x8"), found, None, 8, True)["mismatches"])


def test_a_local_ray_may_take_a_machine_several_times_over() -> None:
    found = check_node(config("cpu", num_cpus=8), machine(cores=2), None, 0, False)
    assert found["mismatches"] == [] and found["oversubscribed"]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A node that says it has one H100."""
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 570.86.15, GPU-0'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    sysinfo.own_machine.cache_clear()  # an actor asks once; this process has asked before
    yield
    sysinfo.own_machine.cache_clear()


@pytest.mark.usefixtures("smi")
def test_nothing_starts_on_another_node() -> None:
    cell = config("cuda", accelerator="H200")
    actor = InstanceActor(cell, True)
    actor._instance = None  # type: ignore[assignment]  # starting it would fail the test
    outcome, (message, passes) = actor.start(Place())
    assert (outcome, passes) == ("error", False)
    assert "GPU NVIDIA H100 80GB HBM3, not H200" in message
    assert actor.node()["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
    outcome, message = OfflineActor(cell, True).measure(cell, 1, 0)
    assert outcome == "error" and "not H200" in message


@pytest.mark.usefixtures("smi")
def test_the_right_node_is_told_apart_by_nothing_but_the_config() -> None:
    cell = config("cuda", accelerator="H100", device_memory=80 << 30, num_cpus=1)
    found = check_node(cell, sysinfo.machine(), "0", 1, True)
    assert found["mismatches"] == []
