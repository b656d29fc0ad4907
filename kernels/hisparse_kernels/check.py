"""The one check of what is passed to an operation: dtype, shape, device and strides, in words a user can act on."""

from __future__ import annotations

import torch
from torch import Tensor


def check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """An input: returns it, contiguous. Raises ValueError."""
    if tensor.dtype is not dtype or tensor.shape != shape or tensor.device != device:
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; needs {dtype} {list(shape)} on {device}"
        )
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def check_state(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A tensor that is written in place, so it must be contiguous as it is. Raises ValueError."""
    found = check(name, tensor, dtype, shape, device)
    if found is not tensor:
        raise ValueError(f"{name} is written in place and must be contiguous; its strides are {tensor.stride()}")
    return found


def check_dims(name: str, tensor: Tensor, dims: int) -> None:
    """Raises ValueError unless the tensor has that many dimensions."""
    if tensor.dim() != dims:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; needs {dims} dimensions")


def check_host(host: Tensor, width: int, dtype: torch.dtype, device: torch.device) -> None:
    """A host pool [H, width]: host memory, pinned where the device is a GPU. Raises ValueError."""
    if host.dim() != 2 or host.shape[1] != width or host.dtype is not dtype or not host.is_contiguous():
        raise ValueError(f"host is {host.dtype} {list(host.shape)}; needs contiguous {dtype} [records, {width}]")
    if device.type == "cuda" and host.device != device and not host.is_pinned():
        raise ValueError(f"host must be pinned memory for kernels on {device} to read: host.pin_memory()")
