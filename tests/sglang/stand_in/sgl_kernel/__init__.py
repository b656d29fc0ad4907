"""In place of SGLang's compiled kernels, which have no CPU build, so that its server starts and serves plain models.

SGLang imports names of this package when it is loaded; those that this path never calls raise when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def assign_req_to_token_pool_cpu(
    request_rows: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    width: int,
) -> None:
    """Write each request's new slots into its row of the table, in place: columns starts[i] to ends[i] of row i."""
    lengths = (ends - starts).tolist()
    for row, first, part in zip(request_rows.tolist(), starts.tolist(), slots.split(lengths), strict=True):
        table[row, first : first + len(part)] = part.to(table.dtype)


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on a CPU")

    return absent
