"""engine=kernels: what it measures, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import hisparse_kernels as hk
import pytest

from harness.config import load_cells
from harness.experiment import plan
from harness.offline import OfflineError, measure
from harness.records import KERNEL_MEASURES
from harness.validate import ConfigError

SMALL = [
    *("experiment=fig7", "tracker=none", "model=glm51", "selector=dsa", "selector.top_k=64", "offload.cache_slots=128"),
    *("workload.miss_rate=0.25", "workload.input_len=2048", "workload.output_len=4"),
]


def test_the_phases_of_a_call_are_measured() -> None:
    (config,) = load_cells(SMALL)
    found = measure(config, 2, 0).measures
    assert set(found) == set(KERNEL_MEASURES)
    assert found["miss_rate"] == 0.25
    assert all(value is not None and value > 0 for value in found.values())
    parts = found["probe_scan_us"] + found["io_us"] + found["residual_us"]
    assert parts < 3 * found["resolve_us"]  # the same steps, timed from inside


def test_without_compiled_kernels_there_is_nothing_to_time() -> None:
    (config,) = load_cells(SMALL)
    with hk.use_backend("reference"), pytest.raises(OfflineError, match=r"install g\+\+ and ninja"):
        measure(config, 1, 0)


def test_the_shipped_grid_is_figure_7() -> None:
    cells = load_cells(["experiment=fig7"])
    assert len({(c.model.name, c.offload.cache_slots) for c in cells}) == len(cells) == 16
    ratios = {(c.offload.cache_slots or 0) / (c.selector.top_k or 1) for c in cells}
    assert ratios == {1, 2, 3, 4} and cells[0].load.concurrencies == [1, 4, 16, 64]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("workload=random_ids", "engine=kernels takes selections, not requests"),
        ("engine=native", "workload=selections cannot drive engine=native"),
        ("offload=full_kv", "offload=full_kv has no resolve to time"),
        ("workload.miss_rate=0", "workload.miss_rate=0.0 must be above 0"),
        ("workload.miss_rate=1.5", "workload.miss_rate=1.5 must be above 0 and at most 1"),
        ("workload.miss_rate=null", "workload.miss_rate=None must be above 0"),
        ("workload.input_len=144", "workload.input_len=144 positions leave too few outside a cache of 128 slots"),
    ],
)
def test_what_cannot_be_timed_is_refused(change: str, message: str) -> None:
    key = change.split("=")[0]
    with pytest.raises(ConfigError) as refused:
        load_cells([*(o for o in SMALL if o.split("=")[0] != key), change])
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_serving_and_measuring_in_place_do_not_mix(tmp_path: Path) -> None:
    here = f"results_dir={tmp_path}"
    with pytest.raises(ConfigError, match="either serves requests or measures in place"):
        plan([*load_cells([*SMALL, here]), *load_cells(["experiment=quickstart", here])])
