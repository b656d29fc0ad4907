"""What an engine computes on, and how the host's numbers get there. torch.cuda is touched for a GPU only."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import TypeVar

import torch
from torch import Tensor

from harness.schema import Config, Device

CPU = torch.device("cpu")
T = TypeVar("T")


def compute_device(config: Config) -> torch.device:
    """The device of `platform.device`. Raises ValueError, in one line, where it cannot be computed on."""
    if config.platform.device is Device.cpu:
        return CPU
    problem = _why_no_gpu()
    if problem:
        raise ValueError(f"platform.device=cuda cannot run here: {problem}; or choose platform=cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _why_no_gpu() -> str | None:
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is a build without CUDA: install one with it"
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
    from hisparse_kernels.build import BuildUnavailable, load

    try:  # the torch reference of the kernels asks the device at every step, and cannot be captured
        load("cuda")
    except BuildUnavailable as error:
        return str(error)
    return None


@functools.cache
def compute_stream() -> torch.cuda.Stream:
    """The stream that every engine of this process computes on. Not the default one, which cannot be captured."""
    return torch.cuda.Stream()


def upload(values: list[int] | list[list[int]], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """The numbers as a tensor on the device, without the host waiting for it."""
    made = torch.tensor(values, dtype=dtype)
    if device.type != "cuda":
        return made.to(device)
    return made.pin_memory().to(device, non_blocking=True)  # the pinned copy is kept until it was read


def pin(tensor: Tensor) -> Tensor:
    """Lock a host tensor's memory, so that a GPU reads and writes it; undone when the tensor is gone.

    Not `Tensor.pin_memory`, which makes a copy and takes the next power of two of bytes. Raises ValueError where the
    system refuses.
    """
    num_bytes, address = tensor.numel() * tensor.element_size(), tensor.data_ptr()
    if not num_bytes:
        return tensor
    runtime = torch.cuda.cudart()
    status = int(runtime.cudaHostRegister(address, num_bytes, 1))  # 1: for every context
    if status:
        raise ValueError(
            f"cannot pin {num_bytes / 2**30:.1f} GiB of host memory (CUDA error {status}): lower "
            "engine.host_kv_budget, or raise the limit of locked memory (ulimit -l)"
        )
    weakref.finalize(tensor.untyped_storage(), runtime.cudaHostUnregister, address).atexit = False
    return tensor


def weights_to(weights: T, device: torch.device) -> T:
    """Weights (dataclasses of tensors, lists of them, None) on the device; shared tensors stay shared."""
    if device == CPU:
        return weights
    moved: dict[int, Tensor] = {}

    def move(part: object) -> object:
        if isinstance(part, Tensor):
            if id(part) not in moved:
                moved[id(part)] = part.to(device)
            return moved[id(part)]
        if isinstance(part, list):
            return [move(each) for each in part]
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            fields = {field.name: move(getattr(part, field.name)) for field in dataclasses.fields(part)}
            return type(part)(**fields)
        return part

    found = move(weights)
    assert isinstance(found, type(weights))
    return found
