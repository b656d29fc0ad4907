"""Jobs beside their owner: in order, never two at once, none lost, and their errors where they are waited for."""

from __future__ import annotations

import threading

import pytest

from harness.write_behind import WriteBehind


def test_jobs_run_beside_their_owner_one_after_the_other() -> None:
    done: list[int] = []
    go_on = threading.Event()

    def first() -> None:
        go_on.wait(200)
        done.append(1)

    with WriteBehind() as behind:
        behind.start(first)
        assert done == []  # we are not kept
        go_on.set()
        behind.start(lambda: done.append(2))
        behind.wait()
        assert done == [1, 2]
        behind.wait()  # nothing is under way
        behind.start(lambda: done.append(3))
    assert done == [1, 2, 3]


@pytest.mark.parametrize("where", ["wait", "start", "end"])
def test_what_a_job_raises_is_raised_once_where_it_is_waited_for(where: str) -> None:
    def full() -> None:
        raise OSError("the disk is full")

    def owner() -> None:
        with WriteBehind() as behind:
            behind.start(full)
            if where != "end":
                behind.wait() if where == "wait" else behind.start(lambda: None)
                pytest.fail("it was not raised")

    with pytest.raises(OSError, match="the disk is full"):
        owner()


def test_a_body_that_is_interrupted_leaves_no_job_half_done() -> None:
    done: list[int] = []
    begun = threading.Event()
    go_on = threading.Timer(0.1, begun.set)

    def job() -> None:
        begun.wait(200)
        done.append(1)

    def owner() -> None:
        with WriteBehind() as behind:
            behind.start(job)
            raise KeyboardInterrupt

    go_on.start()
    with pytest.raises(KeyboardInterrupt):
        owner()
    assert done == [1]
