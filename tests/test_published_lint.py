"""The lint of published rows: it finds what is known to be contradictory, and passes what is not."""

from __future__ import annotations

import pytest

from analysis.comparison import standing
from harness.published_lint import Finding, lint, main

FINDINGS = lint()


def _of(law: str, words: str) -> list[Finding]:
    return [f for f in FINDINGS if f.law == law and words in f.who]


@pytest.mark.parametrize(
    ("law", "words", "holds"),
    [  # the contradictions that shared/reference/upstream_hisparse.md names, and rows that are not among them
        ("Little", "fig4 deepseek-v4-flash full_kv throughput at 64", False),
        ("Little", "fig4 deepseek-v4-flash hisparse throughput at 64", True),
        ("step time", "fig1 glm-5.1-fp8 full_kv concurrent_requests", False),
        ("stated twice", "fig8 glm-5.2-fp8 hisparse_prefetch exposed_io_per_token at 256", False),
        ("host memory", "fig8 glm-5.2-fp8 hisparse_prefetch throughput at 256", True),
        ("device memory", "fig1 glm-5.1-fp8 full_kv concurrent_requests", True),
        ("prefill left", "fig4 deepseek-v4-flash full_kv decode_only_throughput at 64", False),
        ("prefill left", "fig8 glm-5.2-fp8 hisparse_prefetch decode_only_throughput at 256", True),
        ("less work", "fig5 glm-5.1-fp8 hisparse throughput", False),
        ("less work", "fig5 glm-5.1-fp8 full_kv throughput", True),
        ("weights and memory", "fig5 qwen3-30b-a3b full_kv throughput at peak over 4096", False),
        ("weights and memory", "fig5 qwen3-30b-a3b full_kv throughput at peak over 32768", True),
    ],
)
def test_known_contradictions(law: str, words: str, holds: bool) -> None:
    (found,) = _of(law, words)
    assert found.holds == holds


def test_the_operations_of_a_dense_prompt_are_counted_by_hand() -> None:
    """HiSparse on Qwen at 204800: 8192 tokens at 520 tok/s are 15.75 s a request. 48 layers of 32 heads of 128 take
    4 x 128 operations a pair of positions, half of all pairs; weights 2 x 3.3 billion a token."""
    (found,) = _of("operations", "fig5 qwen3-30b-a3b hisparse throughput at peak over 204800")
    attention = 48 * 32 * 4 * 128 * 204800**2 / 2
    weights = 2 * 3.35e9 * (204800 + 8192)
    share = (attention + weights) / 989e12 / (8192 / 520)
    assert float(found.detail.split("%")[0]) / 100 == pytest.approx(share, rel=0.02)


def test_one_row_beats_the_peak_and_none_its_own_weights() -> None:
    checked = [f for f in FINDINGS if f.law in ("operations", "weights")]
    assert len(checked) > 15
    assert [f.who for f in checked if not f.holds] == ["fig5 qwen3-30b-a3b hisparse throughput at peak over 204800"]


def test_what_does_not_hold_is_labelled_so() -> None:
    doubted = standing()
    doubted = doubted[doubted["label"] == "inconsistent-source"]
    named = set(doubted["figure"] + " " + doubted["model"])
    for finding in FINDINGS:
        if not finding.holds:
            assert " ".join(finding.who.split()[:2]) in named


def test_the_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    out = capsys.readouterr().out
    assert f"{len(FINDINGS)} checks, 7 that do not hold" in out
    assert out.startswith("NOT ")
