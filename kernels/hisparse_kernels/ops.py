"""One wrapper per operation: checks its arguments, then runs the kernels of the tensors' device.

Shapes, orders and errors are those of `reference`, which also runs where nothing is compiled. On a GPU everything is
queued on the current stream. `match` and `resolve` then wait for the number of misses, unless `out` is given: with
`out` (and `checked=False`) nothing waits and nothing branches on the host, so a CUDA graph can capture them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hisparse_kernels import reference
from hisparse_kernels.backends import Kernels, kernels_for
from hisparse_kernels.check import check, check_dims, check_host, check_state
from hisparse_kernels.reference import Plan

_int32, _int64 = torch.int32, torch.int64
_State = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_Pools = tuple[Tensor, Tensor, Tensor, int]


def plan_buffer(n: int, k: int, device: str | torch.device = "cpu") -> tuple[Tensor, Plan]:
    """An `out` for `match` and `resolve`: slots [n, k] and a plan with room for every selected position."""
    lists = torch.zeros(3, n * k, dtype=_int64, device=device)
    slots = torch.full((n, k), -1, dtype=_int32, device=device)
    return slots, Plan(lists[0], lists[1], lists[2], torch.zeros(n, dtype=_int64, device=device))


def match(
    selection: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    slot_positions: Tensor,
    lru_order: Tensor,
    *,
    checked: bool = True,
    record: bool = True,
    out: tuple[Tensor, Plan] | None = None,
) -> tuple[Tensor, Plan]:
    """`reference.match`; record=False leaves the plan's lists empty; out: of `plan_buffer`, filled and returned.

    With `out` the plan's lists keep their length: the first `per_row.sum()` entries count.
    """
    state = (selection, rows, seq_lens, slot_positions, lru_order)
    return _match(state, None, checked, record, out)


def resolve(
    selection: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    slot_positions: Tensor,
    lru_order: Tensor,
    cache: Tensor,
    host: Tensor,
    page_table: Tensor,
    page_size: int,
    *,
    checked: bool = True,
    record: bool = True,
    out: tuple[Tensor, Plan] | None = None,
) -> tuple[Tensor, Plan]:
    """`reference.resolve`: `match`, then the copies, divided evenly over all workers by the batch's misses."""
    state = (selection, rows, seq_lens, slot_positions, lru_order)
    return _match(state, (cache, host, page_table, page_size), checked, record, out)


def replay(plan: Plan, cache: Tensor, host: Tensor, page_table: Tensor, page_size: int) -> None:
    """`reference.replay`. On a GPU a move outside the pool or the cache is left out instead of raising."""
    device = cache.device
    kernels = kernels_for(device.type)
    pools = cache, host, page_table, page_size
    if kernels is not None and device.type == "cpu" and kernels.module.replay(*plan, *pools, *_how(kernels)):
        return
    _check_pools(*pools)
    capacity, n = (len(plan.rows),), (len(plan.per_row),)
    shapes = capacity, capacity, capacity, n
    names = (f"plan.{field}" for field in Plan._fields)
    plan = Plan._make(check(name, t, _int64, s, device) for name, t, s in zip(names, plan, shapes, strict=True))
    if kernels is None:
        reference.replay(plan, *pools)
    elif device.type == "cpu":
        assert kernels.module.replay(*plan, *pools, *_how(kernels)), "checked arguments were refused by the kernel"
    else:
        kernels.module.replay(*plan, *pools, _stream(device))


def append(
    records: Tensor, rows: Tensor, seq_lens: Tensor, slot_positions: Tensor, lru_order: Tensor, cache: Tensor
) -> None:
    """`reference.append`."""
    device = cache.device
    kernels = kernels_for(device.type)
    state = slot_positions, lru_order, cache
    on_cpu = device.type == "cpu"
    if kernels is not None and on_cpu and kernels.module.append(records, rows, seq_lens, *state, *_how(kernels)):
        return
    # else: not as it must be; the checks say why, or make the inputs contiguous
    check_dims("cache", cache, 3)
    num_rows, slots, width = cache.shape
    n = len(rows)
    rows = check("rows", rows, _int64, (n,), device)
    seq_lens = check("seq_lens", seq_lens, _int32, (n,), device)
    records = check("records", records, cache.dtype, (n, width), device)
    check_state("slot_positions", slot_positions, _int32, (num_rows, slots - 1), device)
    check_state("lru_order", lru_order, _int32, (num_rows, slots - 1), device)
    check_state("cache", cache, cache.dtype, (num_rows, slots, width), device)
    if kernels is None:
        reference.append(records, rows, seq_lens, *state)
    else:
        how = _how(kernels) if device.type == "cpu" else (_stream(device),)
        kernels.module.append(records, rows, seq_lens, *state, *how)


def write_through(cache: Tensor, rows: Tensor, host: Tensor, host_index: Tensor) -> None:
    """`reference.write_through`. On a GPU an index outside its pool is left out instead of raising."""
    device = cache.device
    check_dims("cache", cache, 3)
    rows = check("rows", rows, _int64, (len(rows),), device)
    host_index = check("host_index", host_index, _int64, (len(rows),), device)
    check_host(host, cache.shape[2], cache.dtype, device)
    check_state("cache", cache, cache.dtype, tuple(cache.shape), device)
    kernels = kernels_for(device.type)
    if kernels is None:
        reference.write_through(cache, rows, host, host_index)
    else:
        how = _how(kernels) if device.type == "cpu" else (_stream(device),)
        kernels.module.write_through(cache, rows, host, host_index, *how)


def stage(records: Tensor, host: Tensor, host_index: Tensor) -> None:
    """`reference.stage`. On a GPU an index outside the pool is left out instead of raising."""
    device = records.device
    kernels = kernels_for(device.type)
    if kernels is not None and device.type == "cpu" and kernels.module.stage(records, host, host_index, *_how(kernels)):
        return
    check_dims("host", host, 2)
    check_host(host, host.shape[1], records.dtype, device)
    count = len(host_index)
    records = check("records", records, host.dtype, (count, host.shape[1]), device)
    host_index = check("host_index", host_index, _int64, (count,), device)
    if kernels is None:
        reference.stage(records, host, host_index)
    else:
        how = _how(kernels) if device.type == "cpu" else (_stream(device),)
        kernels.module.stage(records, host, host_index, *how)


def load(host: Tensor, host_index: Tensor, out: Tensor) -> Tensor:
    """`reference.load`. On a GPU an index outside the pool leaves its record of `out` as it is instead of raising."""
    device = out.device
    check_dims("host", host, 2)
    check_host(host, host.shape[1], out.dtype, device)
    count = len(host_index)
    host_index = check("host_index", host_index, _int64, (count,), device)
    check_state("out", out, host.dtype, (count, host.shape[1]), device)
    kernels = kernels_for(device.type)
    if kernels is None or device.type == "cpu":
        return reference.load(host, host_index, out)
    kernels.module.load(host, host_index, out, _stream(device))
    return out


def gather(pool: Tensor, slots: Tensor) -> Tensor:
    """`reference.gather`. On a GPU a slot outside the pool leaves its record unwritten instead of raising."""
    device = pool.device
    check_dims("slots", slots, 2)
    n, k = slots.shape
    slots = check("slots", slots, _int32, (n, k), device)
    check_state("pool", pool, pool.dtype, tuple(pool.shape), device)
    kernels = kernels_for(device.type)
    if kernels is None:
        return reference.gather(pool, slots)
    out = torch.empty(n, k, pool.shape[-1], dtype=pool.dtype, device=device)
    how = _how(kernels) if device.type == "cpu" else (_stream(device),)
    kernels.module.gather(pool, slots, out, *how)
    return out


def attend(
    q: Tensor, pool: Tensor, slots: Tensor, *, kv_heads: int, value_offset: int, value_dim: int, scale: float
) -> Tensor:
    """`reference.attend`, sums in float32; torch's own operations on a GPU. Equal up to the order of the sums."""
    kernels = kernels_for("cpu") if pool.device.type == "cpu" else None
    if kernels is not None and q.dim() == 3:
        out = torch.empty(*q.shape[:2], value_dim, dtype=q.dtype)
        if kernels.module.attend(q, pool, slots, out, kv_heads, value_offset, scale, torch.get_num_threads()):
            return out
    check_dims("q", q, 3)
    check_dims("slots", slots, 2)
    (n, heads, key_dim), device, width = q.shape, pool.device, pool.shape[-1]
    q = check("q", q, pool.dtype, (n, heads, key_dim), device)
    slots = check("slots", slots, _int32, (n, slots.shape[1]), device)
    check_state("pool", pool, pool.dtype, tuple(pool.shape), device)
    if heads % kv_heads or kv_heads * key_dim > width or not 0 <= value_offset <= width - kv_heads * value_dim:
        raise ValueError(f"{heads} heads of {key_dim} over {kv_heads} KV heads do not fit records of {width} elements")
    if kernels is None:
        shape = {"kv_heads": kv_heads, "value_offset": value_offset, "value_dim": value_dim}
        return reference.attend(q, pool, slots, **shape, scale=scale)
    fits = kernels.module.attend(q, pool, slots, out, kv_heads, value_offset, scale, torch.get_num_threads())
    assert fits, "checked arguments were refused by the kernel"
    return out


def _match(
    state: _State,
    pools: _Pools | None,
    checked: bool,
    record: bool,
    out: tuple[Tensor, Plan] | None,
) -> tuple[Tensor, Plan]:
    device = state[3].device
    kernels = kernels_for(device.type)
    if kernels is not None and device.type == "cpu" and out is None:
        found = _match_cpu(kernels, state, pools, checked, record)
        if found is not None:
            return found
        # else: not as it must be; the checks say why, or make the inputs contiguous
    state = _checked(state, pools)
    if kernels is None:
        return _match_reference(state, pools, checked, record, out)
    if device.type == "cpu" and out is None:
        found = _match_cpu(kernels, state, pools, checked, record)
        assert found is not None, "checked arguments were refused by the kernel"
        return found
    n, k = state[0].shape
    slots, plan = plan_buffer(n, k, device) if out is None else _checked_out(out, n, k, device)
    if not record:
        plan = Plan(plan.rows[:0], plan.slots[:0], plan.positions[:0], plan.per_row)
    if device.type == "cpu":
        _call_cpu(kernels, state, pools, checked, slots, plan)
        return slots, plan
    if checked:
        reference.check_positions(state[0], state[2], state[1], len(state[3]))
    _match_cuda(kernels, state, pools, slots, plan)
    if out is None:
        total = int(plan.per_row.sum())
        plan = Plan(plan.rows[:total], plan.slots[:total], plan.positions[:total], plan.per_row)
    return slots, plan


def _checked(state: _State, pools: _Pools | None) -> _State:
    """The state with contiguous inputs. Raises ValueError."""
    selection, rows, seq_lens, slot_positions, lru_order = state
    device = slot_positions.device
    check_dims("selection", selection, 2)
    check_dims("slot_positions", slot_positions, 2)
    (n, k), (num_rows, num_slots) = selection.shape, slot_positions.shape
    if k > num_slots:
        raise ValueError(f"k={k} selected positions do not fit B={num_slots} slots")
    selection = check("selection", selection, _int32, (n, k), device)
    rows = check("rows", rows, _int64, (n,), device)
    seq_lens = check("seq_lens", seq_lens, _int32, (n,), device)
    check_state("slot_positions", slot_positions, _int32, (num_rows, num_slots), device)
    check_state("lru_order", lru_order, _int32, (num_rows, num_slots), device)
    if pools is not None:
        _check_pools(*pools)
        if pools[0].shape[:2] != (num_rows, num_slots + 1):
            raise ValueError(f"cache is {list(pools[0].shape)}; needs [{num_rows}, {num_slots + 1}, record]")
    return selection, rows, seq_lens, slot_positions, lru_order


def _checked_out(out: tuple[Tensor, Plan], n: int, k: int, device: torch.device) -> tuple[Tensor, Plan]:
    slots, plan = out
    check_state("out slots", slots, _int32, (n, k), device)
    for field, tensor in zip(Plan._fields, plan, strict=True):
        shape = (n,) if field == "per_row" else (len(plan.rows),)
        check_state(f"out plan.{field}", tensor, _int64, shape, device)
    return out


def _match_cpu(
    kernels: Kernels, state: _State, pools: _Pools | None, checked: bool, record: bool
) -> tuple[Tensor, Plan] | None:
    """None where the kernel finds the arguments not as they must be."""
    selection, rows = state[:2]
    room = selection.numel() if record else 0
    slots, flat, per_row = torch.empty_like(selection), torch.empty(3 * room, dtype=_int64), torch.empty_like(rows)
    total = _call_cpu(kernels, state, pools, checked, slots, Plan(flat, flat, flat, per_row))
    if total < 0:
        return None
    if not record:
        return slots, Plan(flat, flat, flat, per_row)
    # The kernel laid the three lists out one behind another, once it knew how long they are.
    lists = flat.split_with_sizes((total, total, total, 3 * (room - total)))
    return slots, Plan(lists[0], lists[1], lists[2], per_row)


def _call_cpu(kernels: Kernels, state: _State, pools: _Pools | None, checked: bool, slots: Tensor, plan: Plan) -> int:
    if pools is None:
        return kernels.module.match(*state, slots, *plan, checked, *_how(kernels))
    return kernels.module.resolve(*state, slots, *plan, checked, *pools, *_how(kernels))


def _match_cuda(kernels: Kernels, state: _State, pools: _Pools | None, slots: Tensor, plan: Plan) -> None:
    selection, device = state[0], state[0].device
    scratch = torch.empty(kernels.module.scratch_ints(*selection.shape, state[3].shape[1]), dtype=_int32, device=device)
    if pools is None:
        kernels.module.match(*state, slots, *plan, scratch, _stream(device))
    else:
        kernels.module.resolve(*state, slots, *plan, *pools, scratch, _stream(device))


def _match_reference(
    state: _State, pools: _Pools | None, checked: bool, record: bool, out: tuple[Tensor, Plan] | None
) -> tuple[Tensor, Plan]:
    if pools is None:
        slots, plan = reference.match(*state, checked=checked)
    else:
        slots, plan = reference.resolve(*state, *pools, checked=checked)
    if out is not None:
        out[0].copy_(slots)
        total = min(len(plan.rows), len(out[1].rows))
        for to, of in zip(out[1][:3], plan[:3], strict=True):
            to[:total] = of[:total]
        out[1].per_row.copy_(plan.per_row)
        return out
    if not record:
        plan = Plan(plan.rows[:0], plan.slots[:0], plan.positions[:0], plan.per_row)
    return slots, plan


def _check_pools(cache: Tensor, host: Tensor, page_table: Tensor, page_size: int) -> None:
    device = cache.device
    check_dims("cache", cache, 3)
    check_dims("page_table", page_table, 2)
    check_state("cache", cache, cache.dtype, tuple(cache.shape), device)
    check_state("page_table", page_table, _int32, (cache.shape[0], page_table.shape[1]), device)
    check_host(host, cache.shape[2], cache.dtype, device)
    if page_size < 1:
        raise ValueError(f"page_size={page_size} must be at least 1")


def _how(kernels: Kernels) -> tuple[int, int]:
    return kernels.block_threads, torch.get_num_threads()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream
