"""Is the node that was given the one the config speaks of? Compared before a server starts there.

`found` is what `harness.sysinfo.machine` says on that node; memory may differ from a data sheet by what vendors round
(an H200 of "141 GB" reports 150.8, a GH200 of "96 GB" 102.6) and by what a kernel keeps for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.schema import Config
from harness.units import show_bytes

DEVICE_MEMORY = (0.95, 1.10)  # reported over configured
HOST_MEMORY = 0.90  # at least, reported over configured


def check_node(
    config: Config, found: Mapping[str, Any], visible: str | None, devices: int, cores: bool
) -> dict[str, Any]:
    """For `env.json`: the node in a few words, and under `mismatches` what is not as the config says, a phrase each.

    visible: CUDA_VISIBLE_DEVICES of the process that has the devices. devices: how many it is to have. cores: whether
    fewer cores than `platform.num_cpus` are a mismatch; a local Ray takes a small machine several times over.
    """
    gpus = given_gpus(found["gpus"], visible) if devices else []
    said = [*_accelerators(config, gpus, devices), *_host(config, found, devices)]
    few = f"{found['usable_cores']} CPU cores, not {config.platform.num_cpus:g} (platform.num_cpus)"
    oversubscribed = config.platform.num_cpus > found["usable_cores"]
    said += [few] if oversubscribed and cores else []
    return {
        "host": found["host"],
        "usable_cores": found["usable_cores"],
        "memory_bytes": usable_memory(found),
        "gpus": [dict(gpu) for gpu in gpus],
        "oversubscribed": oversubscribed,
        "mismatches": list(dict.fromkeys(said)),
    }


def refusal(config: Config, checked: Mapping[str, Any]) -> str | None:
    """One line for the row of a cell that got another node than its platform; None where the node is right."""
    wrong = checked["mismatches"]
    if not wrong:
        return None
    return (
        f"the node {checked['host']} is not what platform={config.platform.name} says: it has {'; '.join(wrong)}; "
        "choose another platform, or override its keys with what the node has"
    )


def usable_memory(found: Mapping[str, Any]) -> int:
    """Bytes: the machine's, or a container's limit."""
    return int(min(found["memory_bytes"], found.get("memory_limit_bytes") or found["memory_bytes"]))


def given_gpus(gpus: Sequence[Mapping[str, Any]], visible: str | None) -> list[Mapping[str, Any]]:
    """Those of a machine's GPUs that a process may use; visible: its CUDA_VISIBLE_DEVICES.

    Named by number, as Ray does, or by UUID; None: all of them. One that nvidia-smi does not list has no memory and no
    driver.
    """
    if visible is None:
        return list(gpus)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    by_name = {str(index): gpu for index, gpu in enumerate(gpus)} | {str(gpu.get("uuid")): gpu for gpu in gpus}
    unknown = {"memory_bytes": None, "driver": None}
    return [by_name.get(name, {"name": f"{name} (unknown to nvidia-smi)", **unknown}) for name in names]


def _accelerators(config: Config, given: Sequence[Mapping[str, Any]], devices: int) -> Iterator[str]:
    platform = config.platform
    if not devices:
        return
    if len(given) != devices:
        yield f"{len(given)} GPUs, not {devices}" if given else f"no GPU that nvidia-smi reports, not {devices}"
    low, high = DEVICE_MEMORY
    for gpu in given:
        if platform.accelerator and not _is_kind(str(gpu["name"]), platform.accelerator):
            yield f"GPU {gpu['name']}, not {platform.accelerator}"
            continue
        memory, said = gpu["memory_bytes"], platform.device_memory
        if memory is not None and said is not None and not low * int(said) <= memory <= high * int(said):
            yield f"{show_bytes(memory)} of memory on {gpu['name']}, not {show_bytes(int(said))}"
        if platform.driver and not _is_driver(str(gpu["driver"]), platform.driver):
            yield f"driver {gpu['driver']}, not {platform.driver}"


def _host(config: Config, found: Mapping[str, Any], devices: int) -> Iterator[str]:
    memory = usable_memory(found)
    for key in ("host_memory", "memory") if devices else ("memory",):
        said = getattr(config.platform, key)
        if said is not None and memory < HOST_MEMORY * int(said):
            yield f"{show_bytes(memory)} of host memory, not {show_bytes(int(said))} (platform.{key})"


def _is_kind(name: str, accelerator: str) -> bool:
    """`NVIDIA H100 80GB HBM3` is an H100; `NVIDIA GH200 480GB` is no H200."""
    words, wanted = (re.findall(r"[a-z0-9]+", text.lower()) for text in (name, accelerator))
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))


def _is_driver(found: str, wanted: str) -> bool:
    """`570` takes 570.86.15, not 5700.1."""
    return found.split(".")[: wanted.count(".") + 1] == wanted.split(".")
