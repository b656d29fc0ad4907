"""Operations of the hierarchical KV cache: resolve, replay, append, write-through, staging and back, gather, attention.

Compiled for CPU and CUDA from one source where a compiler is at hand, in plain torch (`reference`) elsewhere;
`backend()` says which, `python -m hisparse_kernels.bench` measures them.
"""

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
