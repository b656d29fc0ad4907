"""The engine's part of `make gpu-check`, with a GPU's stand-ins: what it compares, and that it finds a difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_cells import Probe
from gpu_doubles import gpu as gpu  # a fixture

from harness.engine import gpu_check
from harness.engine.decoder import GraphDecoder
from harness.engine.executor import Executor
from harness.engine.kv.hisparse import HiSparse
from harness.schema import Config


@pytest.fixture
def stand_in(gpu: Callable[..., Probe], monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller models in `LIKE_GPU` memory; nothing is captured, and counts as if it were."""

    @contextmanager
    def engine(config: Config) -> Iterator[Executor]:
        captured = config.platform.cuda_graphs
        executor = gpu(config).executor
        decoder = executor._decoder
        assert isinstance(decoder, GraphDecoder)
        monkeypatch.setattr(GraphDecoder, "num_graphs", int(captured))
        yield executor

    small = ["model.dtype=float32", "model.hidden_size=48", "model.kv_lora_rank=32", "model.qk_rope_head_dim=16"]
    small += ["engine.device_kv_budget=16MiB", "engine.host_kv_budget=16MiB", "engine.max_running_requests=4"]
    monkeypatch.setattr(gpu_check, "engine", engine)
    monkeypatch.setattr(gpu_check, "MODEL", [*gpu_check.MODEL, *small])
    monkeypatch.setattr(gpu_check, "SMALL", ["selector.top_k=16", "offload.cache_slots=24", "engine.context_len=256"])
    monkeypatch.setattr(gpu_check, "PROMPTS", (100, 33, 70))
    monkeypatch.setattr(gpu_check, "STEPS", 8)


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_all_systems_pass() -> None:
    found = gpu_check.check_same_bits()
    assert found["ok"], found
    assert len(found["cases"]) == 2 * len(gpu_check.SYSTEMS)


@pytest.mark.usefixtures("stand_in")
def test_a_wrong_slot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = HiSparse._append

    def wrong(self: Any, layer: int, records: Any) -> None:
        resolve(self, layer, records * (1 + (layer == 4)))

    monkeypatch.setattr(HiSparse, "_append", wrong)
    monkeypatch.setattr(gpu_check, "SYSTEMS", {name: gpu_check.SYSTEMS[name] for name in ("full_kv", "hisparse_sync")})
    monkeypatch.setattr(HiSparse, "check_integrity", lambda self: None)
    cases = gpu_check.check_same_bits()["cases"]
    assert cases["full_kv, captured"]["ok"]
    assert cases["hisparse_sync, eager"]["problem"] == "differs from eager full KV at step 0"
