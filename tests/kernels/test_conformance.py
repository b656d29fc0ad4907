"""One suite for every implementation: state and output equal to the rules, bit by bit, over long random runs."""

import hisparse_kernels as hk
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from steps import BACKENDS, Case, battery, run_steps, running

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: `make gpu-check` on a machine that has one")
WITH_CUDA = [pytest.param(b, marks=[pytest.mark.gpu, NO_GPU]) if b == "cuda" else b for b in BACKENDS]
EVERY_BACKEND = pytest.mark.parametrize("backend", WITH_CUDA)


def device_of(backend):
    return "cuda" if backend == "cuda" else "cpu"


@st.composite
def cases(draw):
    num_slots = draw(st.integers(1, 40))
    return Case(
        num_slots=num_slots,
        top_k=draw(st.integers(1, num_slots)),
        lengths=draw(st.lists(st.integers(1, 60), min_size=1, max_size=5)),
        steps=draw(st.integers(1, 12)),
        seed=draw(st.integers(0, 2**31)),
        record=draw(st.integers(1, 20)),
        dtype=draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.float64])),
        page_size=draw(st.integers(1, 9)),
        padded=draw(st.integers(0, 3)),
        spread=draw(st.sampled_from([1.0, 0.4])),
        block_threads=draw(st.sampled_from([32, 96, 256, 1024])),
    )


@EVERY_BACKEND
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases())
def test_random_steps_equal_the_rules(backend, case):
    case.device = device_of(backend)
    with running(backend, case.block_threads):
        run_steps(case)


@EVERY_BACKEND
@pytest.mark.parametrize("index", range(4))
def test_the_battery_equals_the_rules(backend, index):
    case = battery(device_of(backend))[index]
    with running(backend):
        run_steps(case)
    assert case.misses or index == 0, "the case moves nothing"


@EVERY_BACKEND
@pytest.mark.parametrize("record", [1152, 656, 584, 579, 1, 2048])
def test_records_of_any_size(backend, record):
    with running(backend):
        run_steps(Case(40, 24, [200, 300, 41], 6, record, record=record, device=device_of(backend)))


def tensors(backend, num_slots, lengths, seed=0, top_k=None, record=16):
    """Resolve's arguments on the backend's device: state, pools and a random selection."""
    g = torch.Generator().manual_seed(seed)
    device, n = device_of(backend), len(lengths)
    pages = -(-max(lengths) // 64)
    host = torch.randint(0, 256, (n * pages * 64, record), generator=g, dtype=torch.uint8)
    selection = torch.stack([torch.randint(-1, x, (top_k or num_slots,), generator=g) for x in lengths]).int()
    where = {
        "selection": selection,
        "rows": torch.arange(n),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "slot_positions": torch.full((n, num_slots), -1, dtype=torch.int32),
        "lru_order": torch.stack([torch.randperm(num_slots, generator=g) for _ in range(n)]).int(),
        "cache": torch.zeros(n, num_slots + 1, record, dtype=torch.uint8),
        "page_table": torch.randperm(n * pages, generator=g).view(n, pages).int(),
    }
    placed = {name: t.to(device) for name, t in where.items()}
    placed["host"] = host.pin_memory() if device == "cuda" else host
    return placed | {"page_size": 64}


def same_as_reference(backend, make, steps=3, **options):
    """Several resolves on `backend` and on the reference; every tensor equal, bit by bit."""
    ours, theirs = make(backend), make("reference")
    for step in range(steps):
        selection = make("reference", step + 1)["selection"]
        ours["selection"], theirs["selection"] = selection.to(ours["cache"].device), selection
        with running(backend):
            slots, plan = hk.resolve(**ours, **options)
        with running("reference"):
            expected, expected_plan = hk.resolve(**theirs, **options)
        assert torch.equal(slots.cpu(), expected)
        for got, want in zip(plan, expected_plan, strict=True):
            assert torch.equal(got.cpu(), want)
        for name in ("slot_positions", "lru_order", "cache"):
            assert torch.equal(ours[name].cpu(), theirs[name]), name


COMPILED = pytest.mark.parametrize("backend", WITH_CUDA[1:])


@COMPILED
@pytest.mark.parametrize(
    ("num_slots", "top_k", "lengths"),
    [(65536, 8192, [1_300_000]), (65536, 2048, [9_000_000]), (4096, 2048, [131072] * 3), (8192, 8192, [8000, 20000])],
)
def test_large_caches_selections_and_contexts(backend, num_slots, top_k, lengths):
    same_as_reference(backend, lambda b, seed=0: tensors(b, num_slots, lengths, seed, top_k))


@COMPILED
def test_a_batch_of_1024(backend):
    same_as_reference(backend, lambda b, seed=0: tensors(b, 24, [100 + i for i in range(1024)], seed, 16))


@EVERY_BACKEND
def test_duplicates_share_one_slot_and_one_fetch(backend):
    made = tensors(backend, 4, [16])
    made["selection"][0] = torch.tensor([5, -1, 5, 15])
    made["lru_order"][0] = torch.arange(4)
    with running(backend):
        slots, plan = hk.resolve(**made)
    assert slots.tolist() == [[0, -1, 0, 4]]
    assert plan.positions.tolist() == [5]


@EVERY_BACKEND
def test_match_alone_moves_no_bytes(backend):
    made = tensors(backend, 4, [16], top_k=2)
    state = [made[name] for name in ("selection", "rows", "seq_lens", "slot_positions", "lru_order")]
    made["selection"][0] = torch.tensor([3, 7])
    with running(backend):
        _, plan = hk.match(*state)
    assert plan.positions.tolist() == [3, 7]
    assert made["cache"].eq(0).all()


@EVERY_BACKEND
def test_only_padded_rows(backend):
    made = tensors(backend, 4, [16, 16])
    made["rows"][:] = -1
    with running(backend):
        slots, plan = hk.resolve(**made)
    assert slots.eq(-1).all()
    assert plan.per_row.tolist() == [0, 0] and len(plan.rows) == 0


@EVERY_BACKEND
def test_an_empty_batch(backend):
    made = tensors(backend, 4, [16])
    batch = {name: made[name][:0] for name in ("selection", "rows", "seq_lens")}
    with running(backend):
        slots, plan = hk.resolve(**(made | batch))
    assert slots.shape == (0, 4) and len(plan.rows) == 0


@EVERY_BACKEND
def test_unchecked_positions_outside_count_as_none_and_touch_nothing(backend):
    made = tensors(backend, 8, [16, 16])
    bad = [[3, 16, -7, 2**31 - 1, -(2**31), 15, 3, 99], [-1] * 8]
    made["selection"] = torch.tensor(bad, dtype=torch.int32).to(made["cache"].device)
    made["rows"] = torch.tensor([1, 77], device=made["cache"].device)
    with running(backend):
        slots, plan = hk.resolve(**made, checked=False)
    assert [s >= 0 for s in slots[0].tolist()] == [True, False, False, False, False, True, True, False]
    assert slots[1].eq(-1).all()
    assert plan.positions.tolist() == [3]
    assert made["cache"][0].eq(0).all()


@EVERY_BACKEND
@pytest.mark.parametrize("bad", [16, 99, -2])
def test_checked_positions_outside_are_an_error_and_change_nothing(backend, bad):
    made = tensors(backend, 8, [16])
    made["selection"][0, 3] = bad
    with running(backend), pytest.raises(ValueError, match=rf"selection\[0, 3\] = {bad} is outside \[-1, 16\)"):
        hk.resolve(**made)
    assert made["slot_positions"].eq(-1).all()


@EVERY_BACKEND
def test_checked_rows_outside_are_an_error(backend):
    made = tensors(backend, 8, [16])
    made["rows"] += 1
    with running(backend), pytest.raises(ValueError, match=r"rows\[0\] = 1 is outside \[-1, 1\)"):
        hk.resolve(**made)


@EVERY_BACKEND
def test_a_plan_that_is_not_recorded(backend):
    made = tensors(backend, 8, [64])
    with running(backend):
        _, plan = hk.resolve(**made, record=False)
    assert len(plan.rows) == 0 and int(plan.per_row[0]) > 0


@pytest.mark.parametrize("backend", BACKENDS[:3])
def test_moves_outside_the_pool_are_an_error(backend):
    made = tensors(backend, 8, [64])
    made["page_table"][:] = 10**6
    with running(backend), pytest.raises(IndexError, match="outside the host pool"):
        hk.resolve(**made)
    with running(backend), pytest.raises(IndexError, match=r"host_index\[1\] = 64"):
        hk.stage(made["cache"][0, :2], made["host"], torch.tensor([0, 64]))
    with running(backend), pytest.raises(IndexError):
        hk.gather(made["cache"], torch.tensor([[9]], dtype=torch.int32))
    with running(backend), pytest.raises(IndexError):
        hk.load(made["host"], torch.tensor([64]), torch.empty_like(made["host"][:1]))


@EVERY_BACKEND
def test_staging_reaches_the_pool(backend):
    made = tensors(backend, 8, [64], record=37)
    records = torch.randint(0, 256, (20, 37), dtype=torch.uint8)
    index = torch.randperm(64)[:20]
    index[3] = -1
    expected = made["host"].clone()
    expected[index[index >= 0]] = records[index >= 0]
    with running(backend):
        hk.stage(records.to(made["cache"].device), made["host"], index.to(made["cache"].device))
        if backend == "cuda":
            torch.cuda.synchronize()
    assert torch.equal(made["host"], expected)


@EVERY_BACKEND
def test_the_pool_is_read_back(backend):
    made = tensors(backend, 8, [64], record=37)
    device = made["cache"].device
    index = torch.randint(0, 64, (50,))  # some twice
    with running(backend):
        out = hk.load(made["host"], index.to(device), torch.empty(50, 37, dtype=torch.uint8, device=device))
        assert torch.equal(out.cpu(), made["host"][index])
        with pytest.raises(ValueError, match=r"out is torch.uint8 \[49, 37\]"):
            hk.load(made["host"], index.to(device), out[:49])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads", "mla"), [(6, 2, False), (4, 4, False), (5, 1, True)])
def test_attention_equals_dense_attention(backend, dtype, heads, kv_heads, mla):
    torch.manual_seed(0)
    key, value, n, k = 24, 16, 3, 40
    width = key if mla else kv_heads * (key + value)
    pool = torch.randn(4, 50, width).to(dtype)
    q = torch.randn(n, heads, key).to(dtype)
    slots = torch.randint(-1, 200, (n, k)).int()
    slots[2] = -1
    offset = 0 if mla else kv_heads * key
    with running(backend):
        out = hk.attend(q, pool, slots, kv_heads=kv_heads, value_offset=offset, value_dim=value, scale=0.3)
    assert out.dtype is dtype and out[2].eq(0).all()
    for i in range(2):
        records = pool.view(-1, width)[slots[i][slots[i] >= 0].long()].float()
        for h in range(heads):
            g = h // (heads // kv_heads)
            keys = records[:, g * key : (g + 1) * key]
            values = records[:, offset + g * value : offset + (g + 1) * value]
            weights = (keys @ q[i, h].float() * 0.3).softmax(0)
            tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
            torch.testing.assert_close(out[i, h].float(), weights @ values, atol=tolerance, rtol=tolerance)


@EVERY_BACKEND
def test_wrong_arguments_are_named(backend):
    made = tensors(backend, 8, [64])
    with running(backend):
        with pytest.raises(ValueError, match=r"seq_lens is torch.int64 .* needs torch.int32 \[1\]"):
            hk.resolve(**(made | {"seq_lens": made["seq_lens"].long()}))
        with pytest.raises(ValueError, match="lru_order is written in place and must be contiguous"):
            hk.resolve(**(made | {"lru_order": made["lru_order"].repeat(1, 2)[:, ::2]}))
        with pytest.raises(ValueError, match=r"cache is .* needs \[1, 9, record\]"):
            hk.resolve(**(made | {"cache": made["cache"][:, 1:].contiguous()}))
        with pytest.raises(ValueError, match="host is"):
            hk.resolve(**(made | {"host": made["host"][:, 1:]}))
        _, plan = hk.match(*(made[x] for x in ("selection", "rows", "seq_lens", "slot_positions", "lru_order")))
        pools = [made[name] for name in ("cache", "host", "page_table", "page_size")]
        with pytest.raises(ValueError, match=r"plan.slots is torch.int32 .* needs torch.int64"):
            hk.replay(plan._replace(slots=plan.slots.int()), *pools)
        with pytest.raises(ValueError, match="page_size=0 must be at least 1"):
            hk.replay(plan, *pools[:3], 0)
        doubled = plan._replace(**{f: getattr(plan, f).repeat_interleave(2)[::2] for f in plan._fields[:3]})
        hk.replay(doubled, *pools)  # inputs may have any strides
        with pytest.raises(ValueError, match="k=9 .* B=8"):
            hk.resolve(**(made | {"selection": made["selection"].repeat(1, 2)[:, :9]}))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_result_does_not_depend_on_the_number_of_threads(workers):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(workers)
        same_as_reference("cpu", lambda b, seed=0: tensors(b, 4096, [9000, 5000, 20000], seed, 2048, record=656))
    finally:
        torch.set_num_threads(before)
