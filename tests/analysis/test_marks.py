"""Stars: the published values, in our units, at the right places, and only where the paper ran the same thing."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import labels, marks
from analysis.frame import Group, Series

KEY = {"model": "glm52", "platform": "h200x8", "input_len": 32768}


def _group(system: str = "full_kv", **key: object) -> Group:
    style = labels.style_of(system)
    series = [Series(system, None, "", True, "cell", style.words, style.short, style.colour, style.marker)]
    points = pd.DataFrame(
        {
            "series": 0,
            "concurrency": [8, 16, 32],
            "output_throughput": [300.0, 650.0, 640.0],
            "mean_ttft_ms": [1e4, 2e4, 9e4],
            "mean_tpot_ms": [24.0, 28.0, 31.0],
        }
    )
    return Group(key=KEY | key, slug="", rows=points, series=series, points=points)


def _stars(axes: object) -> dict[float, float]:
    lines = axes.get_lines()  # type: ignore[attr-defined]
    return {float(line.get_xdata()[0]): float(line.get_ydata()[0]) for line in lines}


def test_a_peak_lies_at_our_best_concurrency() -> None:
    axes = Figure().subplots()
    marks.over_concurrency(axes, _group(), "output_throughput")
    assert _stars(axes) == {16.0: 618.0}


def test_latencies_lie_at_our_throughput_in_milliseconds() -> None:
    axes = Figure().subplots()
    marks.over_throughput(axes, _group(), "mean_ttft_ms")
    assert _stars(axes) == pytest.approx({300.0: 10700.0, 650.0: 16000.0, 640.0: 91000.0})  # 64 we did not run


def test_latencies_lie_at_the_papers_throughput_where_it_gives_one() -> None:
    """Figure 4: 829 s at 64, where the same run reaches 600 tok/s and ours another rate."""
    group = _group(model="deepseek_v4_flash", platform="b200x2")
    group.points["concurrency"] = [8, 16, 64]
    axes = Figure().subplots()
    marks.over_throughput(axes, group, "mean_ttft_ms")
    assert _stars(axes) == pytest.approx({300.0: 26000.0, 600.0: 829000.0})


def test_decode_only_stars_are_hollow() -> None:
    group = _group(model="glm51", platform="h200x8")  # figure 1: 777 tok/s where full KV saturates
    group.points["decode_only_throughput"] = [320.0, 700.0, 690.0]
    axes = Figure().subplots()
    marks.over_concurrency(axes, group, "decode_only_throughput")
    assert _stars(axes) == {16.0: 777.0}
    (line,) = axes.get_lines()
    assert line.get_markerfacecolor() == "white"


@pytest.mark.parametrize(("system", "published"), [("hisparse_sync", (7.7, 22.0)), ("hisparse_prefetch", (3.0, 11.2))])
def test_exposed_io_lies_at_its_concurrency(system: str, published: tuple[float, float]) -> None:
    axes = Figure().subplots()
    group = _group(system)
    group.points["exposed_io_ms_per_token"] = [8.0, 9.0, 10.0]
    marks.over_concurrency(axes, group, "exposed_io_ms_per_token")
    assert _stars(axes) == dict(zip((8.0, 256.0), published, strict=True))


@pytest.mark.parametrize("other", [{"model": "glm_tiny"}, {"platform": "cpu"}, {"input_len": 1024}])
def test_other_runs_get_none(other: dict[str, object]) -> None:
    axes = Figure().subplots()
    marks.over_concurrency(axes, _group(**other), "output_throughput")
    assert _stars(axes) == {}
