"""Bytes of a request, against numbers worked out by hand and against the paper's (papers/hisparse.md)."""

from __future__ import annotations

import copy
import functools

import pytest

from harness.config import load_cells
from harness.engine.footprint import Footprint, KVBytes, ceil_div, record_width
from harness.schema import Config, DType, OffloadSystem, SelectorKind
from harness.validate import complete

GLM, SMOLLM2 = "quickstart", "smollm2_quest"


@functools.cache
def _base(experiment: str) -> Config:
    return load_cells([f"experiment={experiment}", "offload=hisparse_sync"])[0]


def _config(experiment: str, system: str, slots: int | None = None) -> Config:
    config = copy.deepcopy(_base(experiment))
    config.offload.system, config.offload.prefetch = OffloadSystem[system], None
    config.offload.cache_slots = slots
    return complete(config)


def _request(experiment: str, system: str, positions: int, slots: int | None = None) -> KVBytes:
    return Footprint(_config(experiment, system, slots)).request(positions)


# glm_tiny: a record is 128 (latent) + 32 (rotary key) float32 = 640 B; 4 layers; index key 16 float32 = 64 B;
# pages of 16; k = 64. 100 positions: 7 pages of 4 B in the page table, 112 positions of room.
GLM_STATE = 4 * 64 * 100
GLM_ROOM = 4 * 640 * 112


@pytest.mark.parametrize(
    ("system", "slots", "expected"),
    [
        ("full_kv", None, KVBytes(records=GLM_ROOM, selection_state=GLM_STATE, metadata=28, host=0)),
        ("fetch_all", None, KVBytes(records=4 * 640 * 65, selection_state=GLM_STATE, metadata=28, host=GLM_ROOM)),
        (
            "hisparse_sync",
            128,  # and one slot for the newest position; a slot's position and its place in the LRU order: 8 B
            KVBytes(records=4 * 640 * 129, selection_state=GLM_STATE, metadata=28 + 4 * 8 * 128, host=GLM_ROOM),
        ),
    ],
)
def test_glm_tiny_by_hand(system: str, slots: int | None, expected: KVBytes) -> None:
    need = _request(GLM, system, 100, slots)
    assert need == expected
    assert need.device == need.records + need.selection_state + need.metadata


def test_smollm2_by_hand() -> None:
    # A record is keys and values of 3 heads of 64 in float32: 2 x 3 x 64 x 4 = 1536 B; 30 layers. Quest keeps a
    # minimum and a maximum key a page of 16: 2 x 3 x 64 x 4 = 1536 B. 1088 positions: 68 pages.
    full = _request(SMOLLM2, "full_kv", 1088)
    assert full == KVBytes(records=30 * 1536 * 1088, selection_state=30 * 1536 * 68, metadata=272, host=0)
    sync = _request(SMOLLM2, "hisparse_sync", 1088, 512)
    assert sync == KVBytes(
        records=30 * 1536 * 513,
        selection_state=30 * 1536 * 68,
        metadata=272 + 30 * 8 * 512,
        host=30 * 1536 * 1088,
    )


def test_the_oracle_needs_what_hisparse_needs() -> None:
    assert _request(GLM, "no_io_oracle", 333, 96) == _request(GLM, "hisparse_sync", 333, 96)


def test_a_dense_selection_has_no_state() -> None:
    config = copy.deepcopy(_base(GLM))
    config.selector.kind, config.selector.top_k, config.offload.cache_slots = SelectorKind.dense, None, None
    need = Footprint(complete(config)).request(100)
    assert need.selection_state == 0
    assert need.records == 4 * 640 * 1025  # k is the whole context


def test_pages_round_up_and_state_does_not() -> None:
    sizes = [_request(GLM, "full_kv", n) for n in (16, 17, 32)]
    assert [s.records for s in sizes] == [4 * 640 * room for room in (16, 32, 32)]
    assert [s.metadata for s in sizes] == [4, 8, 8]
    assert [s.selection_state for s in sizes] == [4 * 64 * n for n in (16, 17, 32)]


def test_only_offload_systems_keep_a_host_pool() -> None:
    for system in OffloadSystem:
        config = _config(GLM, system.value)
        assert (Footprint(config).request(100).host > 0) == system.offloads
        assert (Footprint(config).workspace > 0) == system.offloads


@pytest.mark.parametrize(("a", "b", "quotient"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2)])
def test_division_rounds_up(a: int, b: int, quotient: int) -> None:
    assert ceil_div(a, b) == quotient


# --- GLM-5.1: 78 layers, BF16 records of 512 + 64 elements, index keys of 128 B, k = 2048 --------------------------

CONTEXT = 131_072  # 128K


def _glm_5_1(system: str, slots: int | None = None) -> Config:
    config = copy.deepcopy(_base(GLM))
    model = config.model
    model.name, model.dtype, model.num_layers, model.max_positions = "glm_5_1", DType.bfloat16, 78, CONTEXT
    model.kv_lora_rank, model.qk_rope_head_dim = 512, 64
    model.index_head_dim = 64  # the paper's 128 B a key: 128 one-byte elements there, 64 of two bytes here
    model.index_top_k = config.selector.top_k = 2048
    config.engine.context_len, config.engine.page_size = CONTEXT, 64
    config.workload.input_len, config.workload.output_len = CONTEXT - 1024, 1024
    config.offload.system, config.offload.cache_slots = OffloadSystem[system], slots
    return complete(config)


def test_glm_5_1_as_the_paper_has_it() -> None:
    config = _glm_5_1("full_kv")
    assert record_width(config.model) * config.model.dtype.num_bytes == 1152
    need = Footprint(config).request(CONTEXT)
    assert need.records == 1152 * 78 * CONTEXT
    assert (need.records + need.selection_state) / 1e9 == pytest.approx(13.09, abs=0.005)
    assert need.metadata < 1e-3 * need.device


def test_glm_5_1_hot_buffer_and_what_the_index_keys_cost() -> None:
    full = Footprint(_glm_5_1("full_kv")).request(CONTEXT)
    sync = Footprint(_glm_5_1("hisparse_sync", 4096)).request(CONTEXT)
    assert 0.365e9 < sync.records + sync.metadata < 0.41e9
    assert sync.host == full.records
    assert sync.selection_state / 1e9 == pytest.approx(1.31, abs=0.01)
    assert full.device / (sync.records + sync.metadata) > 30  # what the paper quotes, and
    assert 7 < full.device / sync.device < 8  # what the device really saves
