"""The torch formulation against a model of the rules written with dicts and lists."""

import hisparse_kernels as hk
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

PAGE = 4
WIDTH = 3


class RowModel:
    """One cache row by the words of the paper: section 3.2 (order), 3.3 (newest), 3.4 (victims)."""

    def __init__(self, num_slots: int, records: list):
        self.slots: list[int | None] = [None] * num_slots  # what each slot holds
        self.order = list(range(num_slots))  # old to new
        self.records = records  # all records by position
        self.fetched: list[int] = []

    def begin(self, length: int) -> None:
        resident = min(length - 1, len(self.slots))
        for i in range(resident):
            self.slots[i] = length - 1 - resident + i
        self.order = list(range(resident, len(self.slots))) + list(range(resident))

    def append(self, seq_len: int) -> None:
        previous = seq_len - 2
        if 0 <= previous < len(self.slots):
            slot = self.order.pop(0)
            assert self.slots[slot] is None, "a sequence that fits never evicts"
            self.slots[slot] = previous
            self.order.append(slot)

    def resolve(self, selection: list[int], seq_len: int) -> list[int]:
        wanted = list(dict.fromkeys(p for p in selection if p >= 0 and p != seq_len - 1))
        hits = [s for s in self.order if self.slots[s] in wanted]
        evictable = [s for s in self.order if self.slots[s] not in wanted]
        held = {self.slots[s] for s in hits}
        misses = [p for p in wanted if p not in held]
        victims = evictable[: len(misses)]
        for slot, position in zip(victims, misses, strict=True):
            self.slots[slot] = position
        self.fetched = misses
        self.order = evictable[len(misses) :] + victims + hits
        where = {self.slots[s]: s for s in hits + victims}
        where[seq_len - 1] = len(self.slots)
        return [where[p] if p >= 0 else -1 for p in selection]


def make_state(num_rows: int, num_slots: int, max_len: int, seed: int):
    g = torch.Generator().manual_seed(seed)
    pages = -(-max_len // PAGE)
    page_table = torch.randperm(num_rows * pages, generator=g).view(num_rows, pages).to(torch.int32)
    host = torch.randn(num_rows * pages * PAGE, WIDTH, generator=g)
    cache = torch.zeros(num_rows, num_slots + 1, WIDTH)
    positions = torch.full((num_rows, num_slots), -1, dtype=torch.int32)
    order = torch.arange(num_slots, dtype=torch.int32).repeat(num_rows, 1)
    return page_table, host, cache, positions, order


@st.composite
def scenario(draw):
    num_slots = draw(st.integers(1, 12))
    top_k = draw(st.integers(1, num_slots))
    num_rows = draw(st.integers(1, 4))
    lengths = [draw(st.integers(1, 20)) for _ in range(num_rows)]
    steps = draw(st.integers(1, 12))
    seed = draw(st.integers(0, 2**31))
    return num_slots, top_k, lengths, steps, seed


@settings(max_examples=150, deadline=None)
@given(scenario())
def test_long_random_steps_equal_the_model_of_the_rules(case):
    num_slots, top_k, lengths, steps, seed = case
    g = torch.Generator().manual_seed(seed)
    num_rows = len(lengths)
    page_table, host, cache, positions, order = make_state(num_rows + 1, num_slots, max(lengths) + steps, seed)
    rows_used = torch.randperm(num_rows + 1, generator=g)[:num_rows].tolist()
    models = []
    for row, length in zip(rows_used, lengths, strict=True):
        truth = host[hk.host_records(page_table, torch.tensor(row), torch.arange(length), PAGE)]
        model = RowModel(num_slots, list(truth))
        model.begin(length)
        models.append(model)
        resident = min(length - 1, num_slots)
        hk.load_row(row, length, positions[:], order, cache, truth[length - 1 - resident :])
    untouched = next(r for r in range(num_rows + 1) if r not in rows_used)
    for step in range(1, steps + 1):
        seq_lens = torch.tensor([n + step for n in lengths] + [0], dtype=torch.int32)
        rows = torch.tensor([*rows_used, -1])  # the last row is padding
        new = torch.randn(num_rows, WIDTH, generator=g)
        hk.append(new, rows[:-1], seq_lens[:-1], positions, order, cache)
        newest = hk.host_records(page_table, rows[:-1], seq_lens[:-1].long() - 1, PAGE)
        hk.write_through(cache, rows[:-1], host, newest)
        selection = torch.stack([torch.randint(-1, max(int(n), 1), (top_k,), generator=g) for n in seq_lens]).to(
            torch.int32
        )
        slots, plan = hk.resolve(selection, rows, seq_lens, positions, order, cache, host, page_table, PAGE)
        records = hk.gather(cache, slots)
        assert slots[-1].eq(-1).all()
        for i, model in enumerate(models):
            model.append(int(seq_lens[i]))
            expected = model.resolve(selection[i].tolist(), int(seq_lens[i]))
            base = rows_used[i] * (num_slots + 1)
            assert slots[i].tolist() == [s if s < 0 else base + s for s in expected]
            assert order[rows_used[i]].tolist() == model.order
            assert positions[rows_used[i]].tolist() == [-1 if p is None else p for p in model.slots]
            assert plan.positions[plan.rows == rows_used[i]].tolist() == model.fetched
            assert int(plan.per_row[i]) == len(model.fetched)
            if int(seq_lens[i]) - 1 <= num_slots:
                assert model.fetched == [], "a sequence that fits needs no host traffic"
            for j, position in enumerate(selection[i].tolist()):
                if position >= 0:
                    at = hk.host_records(page_table, rows[i], torch.tensor(position), PAGE)
                    assert torch.equal(records[i, j], host[at]), f"row {i}, selected position {position}"
        assert positions[untouched].eq(-1).all()
        assert cache[untouched].eq(0).all()


def test_duplicates_share_one_slot_and_one_fetch():
    page_table, host, cache, positions, order = make_state(1, 4, 16, 0)
    rows, seq_lens = torch.tensor([0]), torch.tensor([16], dtype=torch.int32)
    selection = torch.tensor([[5, -1, 5, 15]], dtype=torch.int32)
    slots, plan = hk.resolve(selection, rows, seq_lens, positions, order, cache, host, page_table, PAGE)
    assert slots.tolist() == [[0, -1, 0, 4]]
    assert plan.positions.tolist() == [5]


def test_match_alone_moves_no_bytes():
    _, _, cache, positions, order = make_state(1, 4, 16, 0)
    selection = torch.tensor([[3, 7]], dtype=torch.int32)
    _, plan = hk.match(selection, torch.tensor([0]), torch.tensor([16], dtype=torch.int32), positions, order)
    assert plan.positions.tolist() == [3, 7]
    assert cache.eq(0).all()


def test_only_padded_rows():
    _, _, _, positions, order = make_state(1, 4, 16, 0)
    selection = torch.zeros(2, 3, dtype=torch.int32)
    slots, plan = hk.match(selection, torch.tensor([-1, -1]), torch.zeros(2, dtype=torch.int32), positions, order)
    assert slots.eq(-1).all()
    assert plan.per_row.tolist() == [0, 0]


@pytest.mark.parametrize("bad", [16, 99, -2])
def test_a_position_outside_the_sequence_is_an_error_and_changes_nothing(bad):
    _, _, _, positions, order = make_state(1, 4, 16, 0)
    selection = torch.tensor([[3, bad]], dtype=torch.int32)
    with pytest.raises(ValueError, match=rf"selection\[0, 1\] = {bad} is outside \[-1, 16\)"):
        hk.match(selection, torch.tensor([0]), torch.tensor([16], dtype=torch.int32), positions, order)
    assert positions.eq(-1).all()


def test_a_selection_wider_than_the_cache_is_an_error():
    _, _, _, positions, order = make_state(1, 2, 16, 0)
    selection = torch.tensor([[1, 2, 3]], dtype=torch.int32)
    with pytest.raises(ValueError, match="k=3 .* B=2"):
        hk.match(selection, torch.tensor([0]), torch.tensor([16], dtype=torch.int32), positions, order)
