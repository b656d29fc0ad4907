"""Every mistake of this list, compiled into the shared source, turns the conformance suite red."""

import pytest
from avsg_steps import avsg_battery, run_avsg_steps
from hisparse_kernels import build, use_backend
from steps import battery, run_steps

BUGS = {
    1: "stage: the last of several duplicates stands for all, not the first",
    2: "publish: duplicates after the first are lost",
    3: "probe: a collision in the hash table ends the search",
    4: "scan: victims are taken youngest first",
    5: "stage: no barrier between clearing the table and filling it",
    6: "scan: off by one, inclusive where exclusive is meant",
    7: "order: misses go in front of the stale slots",
    10: "fetch: the last worker leaves out its last record",
    11: "fetch: the last unit of a record is not copied",
    12: "append: the order stays as it was",
    20: "avsg: the loser of a bucket writes there, under the winner's fingerprint",
    21: "avsg: a hit needs the fingerprint only, not the position",
    22: "avsg: every token ages the slots, not only the first of its step",
    23: "avsg: forced ageing goes one year further than it must",
    13: "write-through: reads the oldest slot, not the reserved one",
}


def _is_red(module) -> bool:
    with use_backend("shared", module=module):
        for case in battery():
            try:
                run_steps(case)
            except (AssertionError, IndexError):
                return True
        for avsg_case in avsg_battery():
            try:
                run_avsg_steps(avsg_case)
            except (AssertionError, IndexError):
                return True
    return False


@pytest.mark.slow
def test_without_a_bug_the_same_build_is_green():
    assert not _is_red(build.load("cpu", "SEEDED_BUG=0", flags=("-O0",)))


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[f"{n}-{text.replace(' ', '-')}" for n, text in BUGS.items()])
def test_the_suite_turns_red(bug):
    assert _is_red(build.load("cpu", f"SEEDED_BUG={bug}", flags=("-O0",)))


def test_every_bug_of_the_source_is_listed():
    text = "".join(p.read_text() for p in build.SOURCES.glob("*.h"))
    seeded = {int(part.split()[0]) for op in ("==", "!=") for part in text.split(f"SEEDED_BUG {op} ")[1:]}
    assert seeded == set(BUGS)
