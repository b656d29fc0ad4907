"""What published rows hang on: the variants change what they say, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import harness.sensitivity
from analysis.beside_papers import FILE, hangs_on
from harness import __main__ as harness_main
from harness.config import load_cells
from harness.schema import Config
from harness.sensitivity import AS_IS, VARIANTS, Variant, main, rows_of, sensitivity, with_room
from harness.simulation.load import closed_loop
from harness.simulation.point import SimulatedPoint
from harness.simulation.pools import capacity

(CELL,) = load_cells(["experiment=fig8", "offload=full_kv"])


@pytest.mark.parametrize("more", [-1, 1, 2])
def test_every_rank_holds_so_many_more(more: int) -> None:
    changed = with_room(CELL, more)
    assert changed is not None
    assert capacity(changed, 32768, 8192) == 8 * (3 + more)
    assert CELL.engine.device_kv_budget != changed.engine.device_kv_budget


def test_less_than_one_is_nothing() -> None:
    assert with_room(CELL, -3) is None


def test_rows_hold_the_requests_that_were_asked_for() -> None:
    rows = rows_of([CELL], Variant("N=2C", rounds=2), {0: {16}})
    assert rows[["concurrency", "num_requests", "peak_running", "cell"]].to_numpy().tolist() == [[16, 32, 16, 0]]


def test_full_kvs_times_hang_on_its_room() -> None:
    table = sensitivity(load_cells(["experiment=fig8"]), VARIANTS[:3])
    ttft = table[(table["system"] == "full_kv") & (table["metric"] == "mean_ttft")].set_index("concurrency")
    assert ttft.loc["16", "n-1"] > 3 > abs(float(ttft.loc["16", "n+1"]))  # 16 requests fit by two or three a rank
    assert abs(float(ttft.loc["8", "n-1"])) < 0.01
    assert len(hangs_on(table).rows) == len(table)
    assert table[AS_IS.words].notna().all()
    assert not pd.isna(ttft["n+1"]).any()


def test_an_unknown_figure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no_such_figure"]) == 2
    assert "no_such_figure" in capsys.readouterr().err


def test_a_variant_that_no_cell_has_leaves_its_column_empty() -> None:
    """Figure 4's ranks hold all that may run, so none holds one more."""
    cells = load_cells(["experiment=fig4", "load.concurrencies=[8]"])
    table = sensitivity(cells, VARIANTS[1:3])
    assert table["n+1"].isna().all()
    assert table["as is"].notna().any()


def test_a_sweep_keeps_what_its_rows_say_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its points are not simulated once more, and give what simulating them does."""
    chosen, calls = ["experiment=fig8", "offload=full_kv", "load.concurrencies=[8,16]"], []

    def counted(config: Config, concurrency: int, num_requests: int) -> SimulatedPoint:
        calls.append((concurrency, num_requests))
        return closed_loop(config, concurrency, num_requests)

    monkeypatch.setattr(harness.sensitivity, "closed_loop", counted)
    assert harness_main.main([*chosen, "tracker=none", f"results_dir={tmp_path}"]) == 0
    assert sorted(calls) == [(8, 8), (8, 8), (8, 16), (8, 32), (16, 16), (16, 16), (16, 32), (16, 64)]
    kept = pd.read_csv(tmp_path / "fig8" / FILE)
    simulated = sensitivity(load_cells(chosen), (AS_IS,))
    assert kept["as is"].tolist() == pytest.approx(simulated["as is"].tolist())
