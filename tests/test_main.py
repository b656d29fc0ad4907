"""The command: what it prints, what it refuses and with which exit code. Nothing here starts anything."""

from __future__ import annotations

import copy
import functools
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from harness.__main__ import main
from harness.config import load_cells
from harness.experiment import Cell, experiment_dir, plan
from harness.overrides import GROUPS, choices
from harness.plan_view import cell_labels, plan_table, plan_totals
from harness.records import Status
from harness.schema import Config, from_yaml, to_yaml
from harness.store import write_point
from harness.validate import complete

ROOT = Path(__file__).resolve().parent.parent
QUICK = "experiment=quickstart"
ONE = [QUICK, "offload=hisparse_sync"]
SYSTEMS = ["full_kv", "fetch_all", "hisparse_sync", "no_io_oracle"]


@pytest.fixture(autouse=True)
def _no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any) -> None:
        raise AssertionError("the run must not start")

    monkeypatch.setattr("harness.__main__._run", run)
    monkeypatch.setattr("harness.__main__.fetch", run)
    for variable in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NETRC", "/nonexistent")


def test_help_names_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for group in GROUPS:
        assert group in text
        assert all(name in text for name in choices(group))
    assert "dry_run=true" in text and "--config-dir" in text


def test_cfg_prints_what_loads_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([QUICK, "offload=full_kv,hisparse_sync", "--cfg"]) == 0
    text = capsys.readouterr().out
    cells = [from_yaml(document) for document in text.split("---\n")]
    assert cells[1] == _composed()
    assert [loaded["offload"]["system"] for loaded in yaml.safe_load_all(text)] == ["full_kv", "hisparse_sync"]


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    code = "import sys; from harness.__main__ import main; code = main(sys.argv[1:]); "
    code += "print(*(m for m in ('ray', 'torch', 'wandb') if m in sys.modules), file=sys.stderr); sys.exit(code)"
    command = [sys.executable, "-c", code, QUICK, "dry_run=true", f"results_dir={tmp_path / 'results'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr.split()) == (0, [])
    assert not (tmp_path / "results").exists()
    for part in (*SYSTEMS, "B=128", "9.6 MiB", "512 MiB", "1, 2, 4, 8, 16", "20 points to run", "124 requests"):
        assert part in done.stdout


REFUSED = [
    [],
    ["experiment=nope"],
    [*ONE, "offload=nope"],
    [*ONE, "offload.cache_slot=1"],
    [*ONE, "offload.cache_slots=1"],
    [*ONE, "load.repeats=two"],
    [*ONE, "load.concurrencies=[]"],
    [*ONE, "selector=quest"],
    [*ONE, "selector.top_k=5000"],
    [*ONE, "engine.device_kv_budget=lots"],
    [*ONE, "workload.input_len=5000"],
    [*ONE, "name=a/b"],
    [*ONE, "name=a,b"],
    [*ONE, "words"],
    [*ONE, "line\nbreak=1"],
    [*ONE, "model.weights=/nonexistent"],
    [*ONE, "model.weights=/nonexistent", "dry_run=true"],
    [*ONE, "model.weights=fetch:nope"],
    [*ONE, "tracker.mode=foo"],
    [*ONE, "tracker.mode=online"],
    [*ONE, "--config-dir", "/nonexistent"],
]


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_a_refusal_is_one_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
    assert "Traceback" not in err


def test_the_mode_of_a_tracker_that_is_off_does_not_matter(tmp_path: Path) -> None:
    assert main([*ONE, "tracker=none", "tracker.mode=foo", "dry_run=true", f"results_dir={tmp_path}"]) == 0


def test_a_corrupt_row_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    point = tmp_path / "quickstart" / "some-cell" / "c1-r0"
    point.mkdir(parents=True)
    (point / "result.json").write_text("{")
    assert main([QUICK, "offload=full_kv", f"results_dir={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert str(point / "result.json") in err and err.count("\n") == 1


# --- the plan as people see it -----------------------------------------------------------------------------------


@functools.cache
def _composed() -> Config:
    return load_cells(ONE)[0]


def _cells(*changes: Callable[[Config], object], results_dir: str = "nowhere") -> list[Cell]:
    configs = []
    for change in changes:
        config = copy.deepcopy(_composed())
        config.results_dir = results_dir
        change(config)
        configs.append(complete(config))
    return plan(configs)


def _set(group: str, **values: Any) -> Callable[[Config], object]:
    def change(config: Config) -> None:
        for key, value in values.items():
            setattr(getattr(config, group), key, value)

    return change


def _shown(cells: list[Cell], width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(plan_table(cells))
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 160])
def test_the_plan_fits_the_terminal(width: int) -> None:
    cells = _cells(*(_set("offload", system=type(_composed().offload.system)[s]) for s in SYSTEMS))
    lines = _shown(cells, width)
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith(tuple(SYSTEMS))]
    #                records  state  meta   host   fit  at 16: device, host  to run   (KiB, KiB, ..., MiB)
    assert [row.split() for row in rows] == [
        ["full_kv", "2,400", "240", "0.23", "-", "3", "41.3", "-", "5"],
        ["fetch_all", "162", "240", "0.23", "2,400", "22", "6.92", "37.5", "5"],
        ["hisparse_sync", "B=128", "322", "240", "4.23", "2,400", "16", "9.48", "37.5", "5"],
        ["no_io_oracle", "B=128", "322", "240", "4.23", "2,400", "16", "9.48", "37.5", "5"],
    ]
    above = " ".join(lines[:4])
    for part in ("quickstart: 4 cells", "glm_tiny", "dsa k=64", "768 tokens in, 192 out", "9.6 MiB", "512 MiB"):
        assert part in above
    assert "concurrency 1, 2, 4, 8, 16; requests per point 1, 2, 4, 8, 16" in lines


def test_the_plan_says_what_is_done_and_what_cannot_run(tmp_path: Path) -> None:
    cells = _cells(lambda c: None, _set("engine", device_kv_budget=1 << 20), results_dir=str(tmp_path))
    for point in cells[0].points[:2]:
        row = cells[0].row(point, Status.OK)
        folder = experiment_dir(cells[0].config)
        write_point(folder, row, [], config_yaml=to_yaml(cells[0].config), env={}, server_log="")
    cells = plan([cell.config for cell in cells])
    text = " ".join(" ".join(_shown(cells, 160)).split())
    assert "3 of 5" in text
    assert "none" in text
    assert "device=1MiB cannot run: a request of 768 + 192 tokens needs 567 KiB of device KV" in text
    assert plan_totals(cells) == "8 points to run, 2 on disk already, 28 requests to send"


def test_a_plan_says_in_which_order_on_what_and_for_how_long() -> None:
    limits = {"cell_timeout_s": 7200.0, "budget_s": 28800.0}
    text = " ".join(" ".join(_shown(_cells(_set("cluster", **limits), lambda c: None), 160)).split())
    assert (
        "cells run in this order, one after another" in text and "at most: a cell 2 h 0 min, this run 8 h 0 min" in text
    )
    assert "an instance takes" not in text  # this machine
    there = {"address": "auto", "exclusive": False}
    text = " ".join(" ".join(_shown(_cells(*[_set("cluster", **there)] * 2), 160)).split())
    assert "an instance takes 1 CPU" in text and "owns its nodes" not in text
    assert "side by side where they fit" in text


def test_labels_tell_cells_apart_and_no_more() -> None:
    assert cell_labels(_cells(lambda c: None)) == ["hisparse_sync B=128"]
    swept = _cells(*(_set("offload", cache_slots=b) for b in (64, 128)))
    assert cell_labels(swept) == ["hisparse_sync B=64", "hisparse_sync B=128"]
    lengths = _cells(*(_set("workload", input_len=n) for n in (100, 200)))
    assert cell_labels(lengths) == ["hisparse_sync B=128 in=100", "hisparse_sync B=128 in=200"]
    sizes = _cells(*(_set("model", name=name, num_layers=n) for name, n in (("small", 2), ("large", 9))))
    assert cell_labels(sizes) == ["hisparse_sync B=128 small", "hisparse_sync B=128 large"]  # layers follow the name
    seeds = _cells(*(_set("model", seed=n) for n in (0, 1)))
    assert cell_labels(seeds) == ["hisparse_sync B=128 seed=0", "hisparse_sync B=128 seed=1"]
    both = _cells(*(lambda c, n=n: (_set("model", seed=n)(c), _set("workload", seed=n)(c)) for n in (0, 1)))
    assert cell_labels(both)[1] == "hisparse_sync B=128 model.seed=1 workload.seed=1"
    driven = _cells(*(_set("load", requests_per_worker=n) for n in (1, 2)))
    assert cell_labels(driven)[1] == "hisparse_sync B=128 requests_per_worker=2"
    assert not any("requests per point" in line for line in _shown(driven, 80))
    placed = [("small", "here", 1), ("small", "there", 2), ("large", "there", 3)]  # neither name alone says the budget

    def cell(model: str, platform: str, size: int, tokens: int) -> Callable[[Config], Any]:
        changes = (
            _set("model", name=model),
            _set("platform", name=platform),
            _set("engine", device_kv_budget=size << 30),
        )
        return lambda c: [change(c) for change in (*changes, _set("engine", prefill_chunk_tokens=tokens))]

    told = cell_labels(_cells(*(cell(*p, 64) for p in placed)))
    assert told == [f"hisparse_sync B=128 {model} {platform}" for model, platform, _ in placed]
    chunked = cell_labels(_cells(*(cell(*placed[0], tokens) for tokens in (64, 128))))
    assert chunked == [f"hisparse_sync B=128 prefill_chunk_tokens={tokens}" for tokens in (64, 128)]


def test_long_labels_fold_and_numbers_stay_whole() -> None:
    cells = _cells(*(_set("workload", name=f"a_workload_of_a_very_long_name_indeed_{n}") for n in (0, 1)))
    lines = _shown(cells, 80)
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert sum("2,400" in line for line in lines) == 2


def test_help_names_a_users_own_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine_alone.yaml").write_text("name: mine_alone\n")
    with pytest.raises(SystemExit):
        main(["--config-dir", str(tmp_path), "--help"])
    assert "mine_alone" in capsys.readouterr().out


def test_weights_of_another_model_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 12}')
    overrides = ["experiment=smollm2_quest", f"model.weights={tmp_path}", f"results_dir={tmp_path / 'r'}"]
    assert main(overrides) == 2
    assert "model.num_layers=30" in capsys.readouterr().err and not (tmp_path / "r").exists()


def test_every_cell_of_a_sweep_is_held_against_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not one a model's name: the cell that does not fit may be any of them."""
    overrides = ["experiment=smollm2_quest", f"model.weights={tmp_path},random", f"results_dir={tmp_path / 'r'}"]
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 12}')
    assert main([*overrides, "workload=random_ids"]) == 2
    assert "model.num_layers=30" in capsys.readouterr().err and not (tmp_path / "r").exists()
