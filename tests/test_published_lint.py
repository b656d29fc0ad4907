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
    ],
)
def test_known_contradictions(law: str, words: str, holds: bool) -> None:
    (found,) = _of(law, words)
    assert found.holds == holds


def test_no_row_beats_the_peak_or_its_own_weights() -> None:
    checked = [f for f in FINDINGS if f.law in ("operations", "weights")]
    assert len(checked) > 15
    assert all(f.holds for f in checked)


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
    assert f"{len(FINDINGS)} checks, 3 that do not hold" in out
    assert out.startswith("NOT ")
