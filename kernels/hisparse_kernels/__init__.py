"""Operations of the hierarchical KV cache: resolve, append, write-through, staging, gather.

The torch formulation in `reference` runs today; compiled kernels take the same arguments.
"""

from hisparse_kernels.reference import (
    Plan,
    append,
    gather,
    host_records,
    load_row,
    match,
    replay,
    resolve,
    stage,
    write_through,
)

__all__ = [
    "Plan",
    "append",
    "gather",
    "host_records",
    "load_row",
    "match",
    "replay",
    "resolve",
    "stage",
    "write_through",
]
