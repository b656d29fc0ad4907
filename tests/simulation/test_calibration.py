"""Each fitted scalar of a platform file gives back the one published row that it names."""

from __future__ import annotations

import functools
import re

import pytest
import yaml

from analysis import published
from harness.config import load_cells
from harness.engine.footprint import Footprint
from harness.overrides import config_dir
from harness.schema import Config
from harness.simulation.costs import RankBatch, StepCosts
from harness.simulation.load import simulate_point

PLATFORMS = ("h200x8", "b200x2", "gh200", "h100x8", "a100x8")
MEASURE = {"mean_ttft": "mean_ttft_ms", "mean_tpot": "mean_tpot_ms"}


@functools.cache
def _cells(figure: str) -> dict[str, Config]:
    return {cell.offload.system.value: cell for cell in load_cells([f"experiment={figure}"])}


def _costs(platform: str) -> dict[str, dict[str, object]]:
    return yaml.safe_load((config_dir() / "platform" / f"{platform}.yaml").read_text())["costs"]


def _published(figure: str, system: str, metric: str, concurrency: str) -> float:
    """In milliseconds."""
    rows = published.rows(figure)
    row = rows[(rows["system"] == system) & (rows["metric"] == metric) & (rows["concurrency"] == concurrency)]
    assert len(row) == 1
    return float(row["value"].iloc[0]) * (1e3 if row["unit"].iloc[0] == "s" else 1)


FITTED = [
    (p, key) for p in PLATFORMS for key in _costs(p) if re.match(r"hisparse fig[48]:", str(_costs(p)[key]["source"]))
]


@pytest.mark.parametrize(("platform", "key"), FITTED)
def test_a_fitted_scalar_gives_its_row(platform: str, key: str) -> None:
    source = str(_costs(platform)[key]["source"])
    found = re.match(r"hisparse (fig\d): (\w+) (\w+) at (\d+) = ", source)
    assert found, source
    figure, system, metric, concurrency = found.groups()
    value, c = _published(figure, system, metric, concurrency), int(concurrency)
    if metric == "exposed_io_per_token":
        ours, oracle = (
            float(simulate_point(_cells(figure)[s], c, c)[1]["mean_tpot_ms"] or 0) for s in (system, "no_io_oracle")
        )
        assert ours - oracle == pytest.approx(value, rel=0.005)
    else:
        assert simulate_point(_cells(figure)[system], c, c)[1][MEASURE[metric]] == pytest.approx(value, rel=0.005)


def test_the_attention_kernel() -> None:
    """60 us per layer at a batch of 8 (section 4.4): eight requests at once, on a multiprocessor each."""
    config = _cells("fig8")["full_kv"]
    terms = StepCosts(config).decode([RankBatch(8, 8 * 32768)] * 8, 1)
    assert terms.attention == pytest.approx(78 * 60e-6, rel=0.005)


def test_the_link_of_gh200() -> None:
    """29 us at a batch of 16 (figure 7): 13.4% of 2048 records, by a worker for each request, all over one link."""
    rate = float(str(_costs("gh200")["worker_rate"]["value"]))
    bytes_each = 0.134 * 2048 * Footprint(_cells("fig1")["hisparse_sync"]).record_bytes
    assert bytes_each / rate + 16 * bytes_each / 450e9 == pytest.approx(29e-6, rel=0.01)


@pytest.mark.parametrize(("input_len", "concurrencies"), [(32768, (4, 8, 64, 256)), (204800, (1,))])
def test_the_steps_and_prompts_of_gh200(input_len: int, concurrencies: tuple[int, ...]) -> None:
    """Full KV's peaks in figure 5 at two lengths, which fixed a step's and a prompt's costs together."""
    cells = [cell for cell in load_cells(["experiment=fig5"]) if cell.platform.name == "gh200"]
    (config,) = [c for c in cells if c.workload.input_len == input_len and not c.offload.system.offloads]
    rows = published.rows("fig5")
    row = rows[(rows["platform"] == "1xGH200") & (rows["system"] == "full_kv") & (rows["input_len"] == str(input_len))]
    peak = max(float(simulate_point(config, c, c)[1]["output_throughput"] or 0) for c in concurrencies)
    assert peak == pytest.approx(float(row["value"].iloc[0]), rel=0.015)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_scalar_has_a_source(platform: str) -> None:
    assert all(scalar["source"] for scalar in _costs(platform).values())
