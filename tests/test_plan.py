"""The planner's command line: what it prints, what it refuses, and that its numbers are the simulation's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness import plan
from harness.simulation import advice

SHORT = ["model=glm52", "platform=h200x8", "input_len=32768", "output_len=256"]


def test_a_plan_has_its_parts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "b.png"
    assert plan.main([*SHORT, "slo.ttft_s=60", "slo.tpot_ms=200", "--sweep", "B", "--out", str(figure)]) == 0
    said = capsys.readouterr().out
    parts = (
        "simulated",
        "indexer keys",
        "host_to_device_ratio",
        "full KV",
        "TTFT",
        "TPOT",
        "HiSparse wins at",
        "at the same concurrency",
    )
    for part in (*parts, "no_io_oracle mean_tpot at 8 = 24.1 ms", "python -m harness experiment=plan"):
        assert part in said
    assert figure.stat().st_size > 10_000


def test_the_best_meets_the_limits_and_beats_its_neighbours() -> None:
    _, offload = plan.cells(plan.read(SHORT))
    runs = advice.outcomes(offload)
    assert [run.concurrency for run in runs[:2]] == [8, 16]
    found = advice.best(runs, None, 0.040)
    assert found and found.tpot_s <= 0.040
    assert found.throughput == max(run.throughput for run in runs if run.tpot_s <= 0.040)
    assert advice.best(runs, 1e-3, None) is None


def test_the_ratio_lets_in_what_fits() -> None:
    """The most over all ratios, by trying them."""
    _, offload = plan.cells(plan.read(SHORT))
    ratio, count = advice.host_ratio(offload)
    offload.engine.host_to_device_ratio = ratio
    assert advice.fits(offload) == count
    for other in (ratio / 2, ratio * 2):
        offload.engine.host_to_device_ratio = other
        assert advice.fits(offload) <= count


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["platform=cpu"], "platform=cpu has no"),
        (["platform=gh200"], "model=glm52 needs"),  # 745 GB of weights on one device
        (["slo.ttft_s=soon"], "slo.ttft_s=soon must be a number"),
        (["slo.tpot_ms=-1"], "must be above 0"),
        (["offload=full_kv"], "the planner chooses offload"),
        (["modle=glm52"], "did you mean model?"),
        (["input_len=2000000"], "is longer than engine.context_len"),
    ],
)
def test_refusals_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert re.fullmatch(r"error: [^\n]+\n", err)
