"""Operations of the hierarchical KV cache: resolve, replay, append, write-through, staging and back, gather, attention.

Compiled for CPU and CUDA from one source where a compiler is at hand, in plain torch (`reference`) elsewhere;
`backend()` says which, `python -m hisparse_kernels.bench` measures them. Each is imported, and torch with it, when it
is first asked for: `hisparse_kernels.build` serves others that have no use for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_kernels.backends import backend, use_backend
    from hisparse_kernels.ops import (
        append,
        attend,
        gather,
        load,
        match,
        plan_buffer,
        replay,
        resolve,
        stage,
        write_through,
    )
    from hisparse_kernels.reference import Plan, host_records, load_row

__all__ = [
    "Plan",
    "append",
    "attend",
    "backend",
    "gather",
    "host_records",
    "load",
    "load_row",
    "match",
    "plan_buffer",
    "replay",
    "resolve",
    "stage",
    "use_backend",
    "write_through",
]

_HOMES = {
    "backends": ("backend", "use_backend"),
    "reference": ("Plan", "host_records", "load_row"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME.get(name, 'ops')}"), name)
    return value
