"""A pool of records cut into pages, with a page table row for each request."""

from __future__ import annotations

import hisparse_kernels as kernels
import torch
from torch import Tensor

from harness.engine.device import CPU, pin, upload
from harness.engine.footprint import ceil_div


def empty_records(*shape: int, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """Memory for records [L, ..., W], of which each layer's first is zero.

    `gather` reads that one for a -1 slot. Attention gives it the weight 0, which only takes it out of the sum
    if it is a finite number, and memory never written may hold a NaN.
    """
    records = torch.empty(shape, dtype=dtype, device=device)
    records.view(shape[0], -1, shape[-1])[:, 0] = 0
    return records


class PagedPool:
    """Records [L, num_pages * page_size, W]; position p of a row is record `index(row, p)` in every layer.

    The page table lies on `device`, the records too, or with `in_host` in host memory. The operating system commits
    that as pages are first written, not at construction; for a GPU, which reads and writes it, it is pinned, which
    commits all of it.
    """

    def __init__(
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        width: int,
        dtype: torch.dtype,
        rows: int,
        per_row: int,
        device: torch.device = CPU,
        *,
        in_host: bool = False,
    ):
        place = CPU if in_host else device
        self.records = empty_records(num_layers, num_pages * page_size, width, dtype=dtype, device=place)
        if place != device:
            pin(self.records)
        self.page_size = page_size
        self.page_table = torch.zeros(rows, per_row, dtype=torch.int32, device=device)
        self._num_pages = num_pages
        self._free = list(range(num_pages))[::-1]
        self._held: dict[int, list[int]] = {}

    def allocate(self, row: int, positions: int) -> None:
        """Give a row the pages for that many positions. AssertionError when the pool has not enough."""
        assert row not in self._held, f"row {row} already holds pages"
        self._held[row] = []
        self.grow(row, positions)

    def grow(self, row: int, positions: int) -> None:
        """Add pages until the row has room for that many positions. AssertionError when the pool has not enough."""
        held = self._held[row]
        has, need = len(held), ceil_div(positions, self.page_size)
        if need <= has:
            return
        assert need - has <= len(self._free), f"pool of {self._num_pages} pages ran out"
        held += [self._free.pop() for _ in range(need - has)]
        self.page_table[row, has:need] = upload(held[has:], self.page_table.device, torch.int32)

    def free(self, row: int) -> None:
        self._free += self._held.pop(row)

    def index(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Record number (int64) of each (row, position); the two broadcast against each other."""
        return kernels.host_records(self.page_table, rows, positions, self.page_size)

    def check_integrity(self, rows: set[int]) -> None:
        """Raise AssertionError unless these rows hold pages, each page has one owner, and the table says the same."""
        assert set(self._held) == rows, f"pages are held by rows {sorted(self._held)}, requests by {sorted(rows)}"
        owned = [page for pages in self._held.values() for page in pages]
        assert sorted([*owned, *self._free]) == list(range(self._num_pages)), "pages were lost or given twice"
        for row, pages in self._held.items():
            assert self.page_table[row, : len(pages)].tolist() == pages, f"the page table of row {row} is wrong"

    def check_idle(self) -> None:
        assert not self._held, f"rows {sorted(self._held)} still hold pages"
        assert sorted(self._free) == list(range(self._num_pages)), "pages were lost"
