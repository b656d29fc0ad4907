"""engine=replay: rows that are the replay's own numbers, and cells that cannot be replayed refused."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.config import load_cells
from harness.identity import cell_id
from harness.offline import Measurement, OfflineError, measure
from harness.records import REPLAY_MEASURES
from harness.schema import Config
from harness.store import STEPS_FILE
from harness.validate import ConfigError
from workloads.replay import Block
from workloads.traces import Trace, TraceHeader, TraceWriter
from workloads.traces.synthetic import SyntheticStream

SMALL = [
    *("experiment=fig6", "tracker=none", "replay.policy=lru", "offload.cache_slots=64", "selector.top_k=32"),
    *("model.num_layers=2", "workload.input_len=400", "workload.output_len=40", "platform.num_cpus=1"),
]


def cell(*changes: str) -> Config:
    keys = {change.split("=")[0] for change in changes}
    (config,) = load_cells([*(o for o in SMALL if o.split("=")[0] not in keys), *changes])
    return config


def steps_of(measurement: Measurement) -> pd.DataFrame:
    return pd.read_parquet(io.BytesIO(measurement.files[STEPS_FILE]))


def streams(config: Config, requests: range = range(1)) -> list[np.ndarray]:
    k = config.selector.top_k
    assert k is not None
    work = config.workload
    return [
        np.concatenate(
            [
                block
                for block, _ in SyntheticStream(
                    work.locality,
                    prompt_len=work.input_len,
                    steps=work.output_len,
                    top_k=k,
                    seed=work.seed,
                    request=request,
                    layer=layer,
                )
            ]
        )
        for request in requests
        for layer in range(config.model.num_layers)
    ]


def test_staging_misses_what_the_step_before_had_not() -> None:
    config = cell("replay.policy=staging", "offload.cache_slots=32", "load.num_requests=2")
    found = measure(config, 1, 0)
    assert set(found.measures) == {"miss_rate", *REPLAY_MEASURES}
    rates = []
    for chosen in streams(config, range(2)):
        newest = 400 + np.arange(40)  # never misses: it lies in a slot of its own, and is gone in the next step
        had = [set[int](), *(set(row.tolist()) - {n} for row, n in zip(chosen, newest, strict=True))]
        rates.append(
            [
                len(set(row.tolist()) - before - {n}) / len(row)
                for row, before, n in zip(chosen, had, newest, strict=False)
            ]
        )
    assert steps_of(found)["miss_rate"].tolist() == pytest.approx(np.mean(rates, axis=0).tolist())
    assert found.measures["miss_rate"] == pytest.approx(np.mean(rates))
    assert found.measures["first_step_miss_rate"] == pytest.approx(np.mean([r[0] for r in rates]))
    assert found.measures["replayed_selections"] == 2 * 2 * 40 * 32


def test_caches_of_everything_miss_only_what_is_new() -> None:
    """B above the context: after the prompt's positions are in, nothing misses."""
    found = measure(cell("offload.cache_slots=500"), 1, 0)
    assert found.measures["miss_rate"] == 0
    found = measure(cell("offload.cache_slots=500", "replay.empty=true"), 1, 0)
    assert steps_of(found)["miss_rate"][0] == found.measures["first_step_miss_rate"] == 1
    distinct = np.mean([len(np.unique(chosen[chosen < 400])) for chosen in streams(cell())])
    assert 40 * 32 * (found.measures["miss_rate"] or 0) == pytest.approx(distinct)  # later ones came as newest


def test_tokens_of_a_step_share_the_cache() -> None:
    """From an empty cache all of a step's first token misses; later ones hit what it brought (AVSG, section 3.6)."""
    found = measure(cell("replay.tokens=4", "replay.empty=true", "offload.cache_slots=128"), 1, 0)
    first = found.measures["first_step_miss_rate"]
    assert len(steps_of(found)) == 10
    assert first is not None
    one, *later = streams(cell())[0][:4]
    alone = measure(cell("replay.empty=true", "offload.cache_slots=128"), 1, 0)
    assert alone.measures["first_step_miss_rate"] == 1
    distinct = np.mean([len(np.unique(chosen[:4])) for chosen in streams(cell())])
    assert first == pytest.approx(distinct / (4 * 32), abs=0.02)  # the newest positions beside
    assert first < 0.6 < len(one) / 32 == len(later[0]) / 32


@pytest.mark.parametrize("policy", ["lru", "lifetime", "avsg"])
def test_mtp_3_from_an_empty_cache_reuses_more_than_half_on_the_calibrated_stream(policy: str) -> None:
    """AVSG, section 4.4: 61.87% of the first step's selections hit what its earlier tokens brought."""
    changes = [f"replay.policy={policy}", "offload.cache_slots=8192", "replay.tokens=4", "replay.empty=true"]
    changes += ["tracker=none", "model.num_layers=2", "workload.output_len=4", "platform.num_cpus=1"]
    (config,) = load_cells(["experiment=avsg_reuse", *changes])
    first = measure(config, 1, 0).measures["first_step_miss_rate"]
    assert first is not None
    assert 1 - first > 0.5
    assert 1 - first == pytest.approx(0.6187, abs=0.02)


def test_cells_of_one_workload_make_its_streams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(SyntheticStream):
        def __iter__(self) -> Iterator[Block]:
            made.append(1)
            return super().__iter__()

    monkeypatch.setattr("harness.offline.streams.SyntheticStream", Counted)
    policies = [cell(f"replay.policy={policy}", "workload.seed=77") for policy in ("lru", "belady", "fifo")]
    kept = [measure(config, 1, 0).files for config in policies]
    assert len(made) == 2  # its layers
    measure(cell("workload.seed=78"), 1, 0)
    assert len(made) == 4
    monkeypatch.setattr("harness.offline.streams.KEEP_BYTES", 0)  # too many to be kept
    assert [measure(config, 1, 0).files for config in policies] == kept
    assert len(made) == 4 + 3 * 2


def test_a_repeat_has_requests_of_its_own() -> None:
    config = cell()
    first, again, other = measure(config, 1, 0), measure(config, 1, 0), measure(config, 1, 1)
    assert first.files == again.files
    assert first.files != other.files


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    header = TraceHeader(model="glm51", selector="dsa", top_k=32, source="native", ordered=True)
    with TraceWriter(tmp_path / "mine.trace", header) as writer:
        for layer, chosen in enumerate(streams(cell())):
            writer.append(0, layer, chosen, 401 + np.arange(40, dtype=np.int32))
    return tmp_path / "mine.trace"


def test_a_trace_gives_what_its_stream_gave(trace: Path) -> None:
    config = cell("workload=selection_trace", f"workload.trace={trace}", "selector.top_k=null")
    work = config.workload
    assert (work.name, work.input_len, work.output_len, config.selector.top_k) == ("mine", 400, 40, 32)
    assert measure(config, 1, 0).files == measure(cell(), 1, 0).files
    trace.write_bytes(trace.read_bytes()[:100] + b"x" + trace.read_bytes()[101:])
    with pytest.raises(OfflineError, match=r"mine\.trace: the chunk at byte 16.*is damaged"):
        measure(config, 1, 0)


def test_policy_b_and_stream_make_the_cell() -> None:
    changes = [
        "replay.policy=bucketed_lru",
        *("replay.policy=fifo", "replay.tokens=2", "replay.empty=true", "offload.cache_slots=65"),
        *("workload.locality.slow_rho=0.5", "workload.seed=1"),
    ]
    ids = {cell_id(cell()), *(cell_id(cell(change)) for change in changes)}
    assert len(ids) == 1 + len(changes)
    assert cell_id(cell()).startswith("lru-glm51-dsa-k32-B64-")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["replay.policy=magic"], "replay.policy=magic is none of lru"),
        (["replay.parameters=[buckets:3]"], "replay.lru has no parameter buckets"),
        (["replay.parameters=[many]"], "replay.parameters: 'many' is not NAME:NUMBER"),
        (["offload.cache_slots=31"], "cache_slots=31 (B) is smaller than k=32"),
        (["replay.tokens=4"], "offload.cache_slots=64 does not hold what the 4 tokens of a step select"),
        (["replay.tokens=3", "offload.cache_slots=96"], "workload.output_len=40 is no whole number of steps"),
        (["offload.cache_slots=70000"], "above 65533"),
        (["offload=fetch_all"], "engine=replay takes offload=hisparse_sync"),
        (["workload=random_ids"], "engine=replay takes selections, not requests"),
        (["workload=selections"], "do not go together"),
        (["engine=native"], "workload=synthetic_selections cannot drive engine=native"),
        (["workload.locality.slow_rho=1"], "workload.locality.slow_rho=1.0 is a correlation"),
        (["workload.locality.noise_weight=-1"], "must not be negative"),
        (["workload=selection_trace", "workload.trace=/nowhere"], "/nowhere: no such trace"),
        (["workload=selection_trace", "workload.trace=shipped:nothing"], "shipped:nothing: no such trace comes with"),
        (["workload=selection_trace", "workload.trace=null"], "workload.trace must name a file"),
    ],
)
def test_what_cannot_be_replayed_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cell(*changes)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_trace_of_another_k_or_selector_is_refused(trace: Path) -> None:
    with pytest.raises(ConfigError, match=r"selector\.top_k=16 is not that of .*mine\.trace, k=32"):
        cell("workload=selection_trace", f"workload.trace={trace}", "selector.top_k=16")
    with pytest.raises(ConfigError, match="recorded with selector=dsa: set selector=dsa"):
        cell(
            *("workload=selection_trace", f"workload.trace={trace}", "model=smollm2_135m", "selector=quest"),
            *("selector.top_k=32", "model.weights=random"),
        )
    assert Trace(trace).most_steps == 40


def test_the_shipped_grid_is_figure_6() -> None:
    cells = load_cells(["experiment=fig6"])
    found = {(c.replay.policy, c.offload.cache_slots) for c in cells}
    assert found == {
        *(("staging", 2048), ("fifo", 4096), ("random", 4096), ("lru", 4096), ("belady", 4096)),
        *(("lru", 8192), ("belady", 8192)),
    }
    (model,) = {(c.model.num_layers, c.selector.top_k, c.workload.input_len, c.workload.output_len) for c in cells}
    assert model == (78, 2048, 100_384, 1_000)
