"""Budget and configuration as they are said."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from analysis import frame, settings
from analysis.draw import draw

CONFIG = """
name: demo
model: {{name: glm_tiny, hidden_size: 128}}
platform: {{name: cpu}}
selector: {{kind: dsa, top_k: 64}}
offload: {{system: full_kv, cache_slots: {slots}}}
engine:
  kind: native
  context_len: 1024
  device_kv_budget: {budget}
  host_kv_budget: 536870912
  prefill_chunk_tokens: 512
  port: 0
load: {{concurrencies: [1, 2], num_requests: null, requests_per_worker: 4, total_timeout_s: 60.0}}
workload: {{input_len: 768, temperature: 0.0, files: []}}
"""


@pytest.fixture
def make(tmp_path: Path, synthetic: Any) -> Any:
    def write(full: int, sparse: int) -> Path:
        for system, slots, budget in [("full_kv", "null", full), ("hisparse_sync", "128", sparse)]:
            for c in (4, 16):
                both = ("output_throughput", "peak_running")
                measures = {name: value for name, value in synthetic.measures(system, c).items() if name in both}
                config = CONFIG.format(slots=slots, budget=budget)
                synthetic.write(tmp_path / "demo", synthetic.row(system, c, measures=measures), config=config)
        return tmp_path / "demo"

    return write


def read(folder: Path) -> tuple[frame.Experiment, frame.Group]:
    experiment = frame.load(folder)
    return experiment, experiment.groups[0]


def test_the_budget_and_who_ran_at_once(make: Any) -> None:
    assert settings.budget(*read(make(10_066_329, 10_066_329))) == [
        "device KV budget 9.6 MiB; host pool 512 MiB; context length 1,024 tokens; prefill chunk 512 tokens",
        "ran at once at most: Full KV 3; HiSparse, sync (B=128) 16",
    ]


def test_budgets_that_differ_are_each_said(make: Any) -> None:
    first, _ = settings.budget(*read(make(8 << 20, 4 << 20)))
    assert first.startswith("device KV budget 8 MiB (Full KV) | 4 MiB (HiSparse, sync (B=128)); host pool 512 MiB")


def test_configs_without_budgets_say_nothing_about_them(sweep: Path) -> None:
    (only,) = settings.budget(*read(sweep))
    assert only.startswith("ran at once")


def test_the_configuration_lists_main_keys_and_what_differs(make: Any) -> None:
    assert dict(settings.configuration(*read(make(1 << 20, 1 << 20)))) == {
        "model.name": "glm_tiny",
        "platform.name": "cpu",
        "selector.kind": "dsa",
        "selector.top_k": "64",
        "offload.cache_slots": "– (Full KV) | 128 (HiSparse, sync (B=128))",
        "engine.kind": "native",
        "engine.context_len": "1,024",
        "engine.device_kv_budget": "1 MiB (1,048,576 bytes)",
        "engine.host_kv_budget": "512 MiB (536,870,912 bytes)",
        "engine.prefill_chunk_tokens": "512",
        "load.requests_per_worker": "4",
        "workload.input_len": "768",
        "workload.temperature": "0.0",
    }


def test_the_terminal_says_the_budget_under_the_title_and_the_report_too(make: Any) -> None:
    drawn = draw(make(10_066_329, 10_066_329))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(drawn.summary)
    lines = console.export_text().splitlines()
    assert lines[0].startswith("glm_tiny, dsa")
    assert lines[1].startswith("device KV budget 9.6 MiB; host pool 512 MiB")
    page = drawn.report.read_text(encoding="utf-8")
    assert "device KV budget 9.6 MiB" in page
    assert "<td>engine.device_kv_budget</td><td>9.6 MiB (10,066,329 bytes)</td>" in page
