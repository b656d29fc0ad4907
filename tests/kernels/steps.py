"""Long random sequences of decode steps, run on the operations and on the model of the rules side by side."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import hisparse_kernels as hk
import torch
from rules_model import RowModel
from torch import Tensor

BACKENDS = ("reference", "cpu-shared", "cpu", "cuda")


def running(backend: str, block_threads: int = 256) -> AbstractContextManager[None]:
    """The context in which operations run on that backend."""
    if backend == "cuda":
        return nullcontext()
    names = {"reference": "reference", "cpu-shared": "shared", "cpu": "auto"}
    return hk.use_backend(names[backend], block_threads=block_threads)


@dataclass
class Case:
    """A scenario. Records are `record` elements of `dtype`; lengths are those before the first step."""

    num_slots: int
    top_k: int
    lengths: list[int]
    steps: int
    seed: int
    record: int = 3
    dtype: torch.dtype = torch.uint8
    page_size: int = 4
    padded: int = 1  # rows of padding in every batch, at random places
    spread: float = 1.0  # share of the positions that selections come from: small gives many hits
    device: str = "cpu"
    block_threads: int = 256
    misses: int = field(default=0, init=False)


class World:
    """The tensors of two layers (an anchor and one that replays its plans) and the models of their rows."""

    def __init__(self, case: Case):
        self.case = case
        self.g = torch.Generator().manual_seed(case.seed)
        rows, spare = len(case.lengths), 2
        self.num_rows = rows + spare
        pages = -(-(max(case.lengths) + case.steps) // case.page_size)
        self.page_table = torch.randperm(self.num_rows * pages, generator=self.g).view(self.num_rows, pages).int()
        self.hosts = [self._records(self.num_rows * pages * case.page_size) for _ in range(2)]
        self.caches = [self._place(self._records(self.num_rows * (case.num_slots + 1), zero=True)) for _ in range(2)]
        self.caches = [c.view(self.num_rows, case.num_slots + 1, case.record) for c in self.caches]
        shape = (self.num_rows, case.num_slots)
        self.positions = self._place(torch.full(shape, -1, dtype=torch.int32))
        self.order = self._place(torch.arange(case.num_slots, dtype=torch.int32).repeat(self.num_rows, 1))
        self.pinned = [h.pin_memory() if case.device != "cpu" else h for h in self.hosts]
        self.table = self._place(self.page_table)
        self.used = torch.randperm(self.num_rows, generator=self.g)[:rows].tolist()
        self.models = [{r: RowModel(case.num_slots) for r in self.used} for _ in range(2)]
        for layer in range(2):
            self._begin(layer)

    def _records(self, count: int, zero: bool = False) -> Tensor:
        case = self.case
        size = count * case.record * case.dtype.itemsize
        raw = torch.zeros(size, dtype=torch.uint8)
        if not zero:
            raw = torch.randint(0, 256, (size,), generator=self.g, dtype=torch.uint8)
        return raw.view(case.dtype).view(count, case.record)

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.case.device)

    def at(self, row: int, position: int) -> int:
        page = int(self.page_table[row, position // self.case.page_size])
        return page * self.case.page_size + position % self.case.page_size

    def held(self, layer: int, row: int, length: int) -> dict[int, bytes]:
        """The host pool's records of a row, by position."""
        return {p: raw(self.pinned[layer][self.at(row, p)]) for p in range(length)}

    def _begin(self, layer: int) -> None:
        for row, length in zip(self.used, self.case.lengths, strict=True):
            model = self.models[layer][row]
            empty = bytes(self.case.record * self.case.dtype.itemsize)
            model.records = [empty] * (self.case.num_slots + 1)
            model.begin(length, self.held(layer, row, length))
            first = length - 1 - min(length - 1, self.case.num_slots)
            records = torch.stack([self.pinned[layer][self.at(row, p)] for p in range(first, length)])
            hk.load_row(row, length, self.positions, self.order, self.caches[layer], self._place(records))


def raw(record: Tensor) -> bytes:
    return record.contiguous().cpu().view(torch.uint8).numpy().tobytes()


def run_steps(case: Case) -> None:
    """AssertionError at the first difference between the operations and the model of the rules."""
    world = World(case)
    for step in range(1, case.steps + 1):
        _run_step(world, step)
    assert_rows_match(world, "after the last step")


def _run_step(world: World, step: int) -> None:
    case, g = world.case, world.g
    batch: list[int] = world.used + [-1] * case.padded
    batch = [batch[i] for i in torch.randperm(len(batch), generator=g)]
    length_of = {r: n + step for r, n in zip(world.used, case.lengths, strict=True)}
    lengths = [length_of.get(r, 7) for r in batch]
    rows = world._place(torch.tensor(batch))
    seq_lens = world._place(torch.tensor(lengths, dtype=torch.int32))
    newest = world._place(
        torch.tensor([world.at(r, n - 1) if r >= 0 else -1 for r, n in zip(batch, lengths, strict=True)])
    )
    state = (world.positions, world.order)
    for layer in (1, 0):  # the anchor last, so that both see the same order before its resolve
        new = world._records(len(batch))
        kept = [t.clone() for t in state]
        hk.append(world._place(new), rows, seq_lens, *(state if layer == 0 else kept), world.caches[layer])
        hk.write_through(world.caches[layer], rows, world.pinned[layer], newest)
        _sync(case)
        for i, row in enumerate(batch):
            if row >= 0:
                world.models[layer][row].append(lengths[i], raw(new[i]))
                assert raw(world.pinned[layer][world.at(row, lengths[i] - 1)]) == raw(new[i]), "write-through"
    selection = torch.stack([_selection(case, n, g) for n in lengths])
    pools = [(world.caches[i], world.pinned[i], world.table, case.page_size) for i in range(2)]
    if step % 3 == 0:  # with buffers of the caller's
        out = hk.plan_buffer(len(batch), case.top_k, case.device)
        slots, plan = hk.resolve(world._place(selection), rows, seq_lens, *state, *pools[0], checked=False, out=out)
    elif step % 3 == 1:
        slots, plan = hk.resolve(world._place(selection), rows, seq_lens, *state, *pools[0])
        assert len(plan.rows) == int(plan.per_row.sum()), "a plan without `out` is as long as its misses"
    else:
        slots, plan = hk.match(world._place(selection), rows, seq_lens, *state)
        hk.replay(plan, *pools[0])
    hk.replay(plan, *pools[1])
    gathered = hk.gather(world.caches[0], slots)
    _sync(case)
    _compare_step(world, step, batch, lengths, selection, slots.cpu(), plan, gathered.cpu())
    if step % 5 == 0:
        assert_rows_match(world, f"after step {step}")


def _selection(case: Case, length: int, g: torch.Generator) -> Tensor:
    """Random positions of [-1, length), with duplicates; near the end more often if spread < 1."""
    low = int((1 - case.spread) * length) - 1 if case.spread < 1 else -1
    drawn = torch.randint(max(low, -1), max(length, 1), (case.top_k,), generator=g)
    drawn[torch.rand(case.top_k, generator=g) < 0.05] = -1
    return drawn.int()


def _compare_step(
    world: World,
    step: int,
    batch: list[int],
    lengths: list[int],
    selection: Tensor,
    slots: Tensor,
    plan: hk.Plan,
    gathered: Tensor,
) -> None:
    case, start = world.case, 0
    for i, row in enumerate(batch):
        if row < 0:
            assert slots[i].eq(-1).all() and int(plan.per_row[i]) == 0, f"step {step}: padding at {i}"
            continue
        model, replayed = world.models[0][row], world.models[1][row]
        base = row * (case.num_slots + 1)
        expected = [s if s < 0 else base + s for s in model.match(selection[i].tolist(), lengths[i])]
        assert slots[i].tolist() == expected, f"step {step}: slots of batch row {i}"
        count = int(plan.per_row[i])
        assert count == len(model.fetched), f"step {step}: misses of batch row {i}"
        part = slice(start, start + count)
        assert plan.rows[part].tolist() == [row] * count
        assert list(zip(plan.slots[part].tolist(), plan.positions[part].tolist(), strict=True)) == model.fetched
        start += count
        if lengths[i] - 1 <= case.num_slots:
            assert count == 0, "a sequence that fits needs no host traffic"
        host = [world.held(layer, row, lengths[i]) for layer in range(2)]
        model.fetch(host[0])
        replayed.fetch(host[1], model.fetched)
        for j, position in enumerate(selection[i].tolist()):
            if position >= 0:
                assert raw(gathered[i, j]) == host[0][position], f"step {step}: record of batch row {i}, position {j}"
    case.misses += start


def assert_rows_match(world: World, when: str) -> None:
    """Every byte of the state equals the model's; rows nobody used are as they were."""
    order, positions = world.order.cpu(), world.positions.cpu()
    caches = [c.cpu() for c in world.caches]
    for row in range(world.num_rows):
        if row not in world.used:
            assert positions[row].eq(-1).all(), f"{when}: row {row} is not in use"
            assert not any(raw(c[row]).strip(b"\0") for c in caches), f"{when}: row {row} is not in use"
            continue
        model = world.models[0][row]
        assert order[row].tolist() == model.order, f"{when}: order of row {row}"
        assert positions[row].tolist() == [-1 if p is None else p for p in model.slots], f"{when}: row {row}"
        for layer in range(2):
            expected = b"".join(world.models[layer][row].records)
            assert raw(caches[layer][row]) == expected, f"{when}: records of row {row}, layer {layer}"


def _sync(case: Case) -> None:
    if case.device != "cpu":
        torch.cuda.synchronize()


def battery(device: str = "cpu", block_threads: int = 256) -> list[Case]:
    """A few cases that together touch every phase, for builds that are slow or wrong on purpose."""
    shared = {"device": device, "block_threads": block_threads}
    return [
        Case(8, 8, [3, 20, 1], 12, 1, record=7, padded=1, **shared),
        Case(300, 70, [280, 900], 9, 2, record=48, padded=0, **shared),
        Case(700, 650, [2000], 6, 3, record=73, dtype=torch.float64, padded=2, spread=0.5, **shared),
        Case(64, 40, [500, 60, 65, 66], 10, 4, record=5, dtype=torch.bfloat16, spread=0.2, **shared),
    ]
