"""A synthetic experiment on disk: four systems, full KV saturating at three running requests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from analysis.draw import Drawn, draw
from harness import store
from harness.records import RequestRecord, ResultRow, Status

CONCURRENCIES = (1, 2, 4, 8, 16)
SYSTEMS = ("full_kv", "fetch_all", "hisparse_sync", "no_io_oracle")
# seconds of a decode step: fixed part, part per running request
STEP_S = {
    "full_kv": (0.020, 0.0040),
    "fetch_all": (0.020, 0.0150),
    "hisparse_sync": (0.021, 0.0058),
    "hisparse_prefetch": (0.0205, 0.0050),
    "no_io_oracle": (0.020, 0.0042),
}
OUTPUT_LEN = 64
PREFILL_S = 0.35
FULL_KV_FITS = 3


def measures(system: str, concurrency: int, repeat: int = 0) -> dict[str, float | int | None]:
    """What a closed loop over a server with these step times would measure."""
    running = min(concurrency, FULL_KV_FITS) if system == "full_kv" else concurrency
    fixed, each = STEP_S[system]
    tpot = (fixed + each * running) * (1 + 0.03 * repeat)
    wait = (concurrency - running) / running * (PREFILL_S + tpot * OUTPUT_LEN)
    ttft = PREFILL_S * (1 + 0.15 * running) + wait
    cycle = PREFILL_S * running + tpot * OUTPUT_LEN
    caches = system not in ("full_kv", "fetch_all")
    return {
        "duration_s": 4 * cycle,
        "completed": 4 * concurrency,
        "failed": 0,
        "output_throughput": running * OUTPUT_LEN / cycle,
        "decode_only_throughput": running / tpot,
        "mean_ttft_ms": 1000 * ttft,
        "mean_tpot_ms": 1000 * tpot,
        "p99_tpot_ms": 1400 * tpot,
        "peak_running": running,
        "hit_rate": 0.931 if caches else None,
        "exposed_io_ms_per_token": {"hisparse_sync": 1.83, "fetch_all": 10.7}.get(system),
    }


def requests_of(system: str, concurrency: int) -> list[RequestRecord]:
    """Requests whose text depends on the prompt alone, except the oracle's, which is wrong at odd ones."""
    return [
        RequestRecord(
            request_id=f"r{i}",
            worker=i % concurrency,
            prompt_sha=f"sha-{concurrency}-{i}",
            input_len=1024,
            output_len=OUTPUT_LEN,
            scheduled_s=0.0,
            sent_s=0.0,
            output_text=f"answer {i}" + (" (stale)" if system == "no_io_oracle" and i % 2 else ""),
        )
        for i in range(2 * concurrency)
    ]


def config_yaml(**workload: Any) -> str:
    temperature = workload.get("temperature", 0.0)
    return f"name: demo\ndescription: A <synthetic> sweep.\nworkload:\n  temperature: {temperature}\n"


def row_of(system: str, concurrency: int, **changes: Any) -> ResultRow:
    cached = system not in ("full_kv", "fetch_all")
    fields: dict[str, Any] = {
        "experiment": "demo",
        "cell_id": f"cell-{system}",
        "engine": "native",
        "model": "glm_tiny",
        "selector": "dsa",
        "platform": "cpu_2",
        "offload": system,
        "top_k": 64,
        "cache_slots": 128 if cached else None,
        "workload": "random_ids",
        "input_len": 1024,
        "output_len": OUTPUT_LEN,
        "concurrency": concurrency,
        "num_requests": 2 * concurrency,
        "repeat": 0,
        "status": Status.OK,
        "outputs_valid": system != "no_io_oracle",
        "measures": measures(system, concurrency, changes.get("repeat", 0)),
    }
    return ResultRow(**(fields | changes))


def write(root: Path, row: ResultRow, requests: list[RequestRecord] | None = None, config: str | None = None) -> Path:
    if requests is None:
        requests = requests_of(row.offload, row.concurrency) if row.status is Status.OK else []
    env = {
        "python": "3.11.9",
        "cpu": {"model": "a <fast> one", "cores": 2},
        "loadgen": {"actor": {"pid": 4711, "nice": 3, "placement_group": "c0ffee"}},
        "instance": {"server_pid": 4712},
    }
    return store.write_point(root, row, requests, config_yaml=config or config_yaml(), env=env, server_log="ready\n")


def write_sweep(
    root: Path, systems: Iterable[str] = SYSTEMS, concurrencies: Iterable[int] = CONCURRENCIES, **changes: Any
) -> Path:
    for system in systems:
        for concurrency in concurrencies:
            write(root, row_of(system, concurrency, **changes))
    return root


@pytest.fixture
def slots_sweep(tmp_path: Path) -> Path:
    """Full KV beside HiSparse at six values of B, where 2,048 slots hold all that run."""
    root = write_sweep(tmp_path / "slots", ["full_kv"])
    for slots in (64, 96, 128, 192, 256, 512):
        for concurrency in CONCURRENCIES:
            found = measures("hisparse_sync", concurrency) | {"peak_running": min(concurrency, 2048 // slots)}
            row = row_of("hisparse_sync", concurrency, cache_slots=slots, cell_id=f"cell-{slots}", measures=found)
            write(root, row)
    return root


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """The standard experiment: 4 systems x 5 concurrencies, all ok."""
    return write_sweep(tmp_path / "demo")


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """The standard experiment, drawn once for all tests that only look."""
    return draw(write_sweep(tmp_path_factory.mktemp("drawn") / "demo"))


@pytest.fixture
def synthetic() -> Any:
    """This module's functions, for tests that need another experiment than `sweep`."""

    class Synthetic:
        row = staticmethod(row_of)
        write = staticmethod(write)
        sweep = staticmethod(write_sweep)
        requests = staticmethod(requests_of)
        measures = staticmethod(measures)
        config = staticmethod(config_yaml)

    return Synthetic
