"""The benchmark asks for what it says, and its last line is JSON."""

import json
import sys

import hisparse_kernels as hk
import pytest
from hisparse_kernels import bench


@pytest.mark.parametrize(
    "setting",
    [
        bench.Setting("x", top_k=64, ratio=r, misses=m, context=2048, batch=2, record=24)
        for r, m in ((1, 0.5), (2, 0.13), (4, 0.001))
    ],
)
def test_a_workload_misses_at_the_rate_it_was_asked_for(setting):
    work = bench.Workload(setting, 4, "cpu")
    resolve = work.resolver(record=True)
    for step in range(4):
        _, plan = resolve(step)
        assert plan.per_row.tolist() == [setting.num_misses] * 2
        assert plan.positions.tolist() == work.plans[step].positions.tolist()


def test_the_sweeps_cover_the_papers_figure_7():
    found = bench.settings(quick=False)
    assert {s.ratio for s in found} == {1, 2, 3, 4}
    assert {s.batch for s in found} >= {1, 4, 16, 64}
    assert {s.record for s in found} == {1152, 1024, 2048, 656, 584}
    assert min(s.misses for s in found) == 0.001 and max(s.misses for s in found) == 0.5


@pytest.mark.slow
def test_the_last_line_is_json_and_no_slow_path_was_taken(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--rounds", "15"])
    bench.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert hk.backend() == "cpu"
    assert result["targets"]["reference_over_ours"] > 1  # the target is 10: `make bench-kernels`
    assert result["targets"]["over_floor"] > 0
