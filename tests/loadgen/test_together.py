"""Processes that drive one point together, with threads as processes: started at one moment, none left waiting."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import paced_process
import pytest

from harness.actors import LoadgenActor
from harness.loadgen.point import PointLoad
from harness.loadgen.together import read_clock, run_together
from harness.records import Status


class Thread:
    """A load generator in threads of this process, as an actor with two of them; its clock may be another's."""

    def __init__(self, ahead_s=0.0, delay_s=0.0):
        self.actor, self.pool = LoadgenActor(), ThreadPoolExecutor(2)
        self.ahead_s, self.delay_s = ahead_s, delay_s

    def call(self, method, *args) -> Future:
        if method == "clock" and self.ahead_s:
            return self.pool.submit(self._other_clock)
        if method == "begin" and self.ahead_s and args[0]:
            args = (args[0] - self.ahead_s,)  # what that clock shows at that moment is this one's
        return self.pool.submit(getattr(self.actor, method), *args)

    def _other_clock(self):
        time.sleep(self.delay_s)
        return "elsewhere", time.time() + self.ahead_s


def load(paced, url, **more):
    defaults = {"prompts": paced.prompts(9, output_len=4), "concurrency": 3, "load": paced.limits()}
    return PointLoad(base_url=url, model="m", **(defaults | more))


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_any_number_of_processes_makes_one_point(paced, served, workers):
    served.scenario.together = range(3)  # processes that waited for one another would wait for ever

    def check():
        team = [Thread() for _ in range(workers)]
        result = run_together(load(paced, served.base_url), team, own_clock="").result()
        assert (result.status, result.reason) == (Status.OK, None)
        assert sorted(r.request_id for r in result.requests) == [f"request-{i:05d}" for i in range(9)]
        assert {r.worker for r in result.requests} == {0, 1, 2}
        assert served.max_running == 3
        assert result.measures["load_processes"] == min(workers, 3)
        assert (result.measures["clock_uncertainty_ms"] is None) == (workers == 1)
        first = sorted(r.sent_s for r in result.requests)[:3]
        assert first[-1] - first[0] < 0.2  # begun at one moment

    paced_process.undisturbed(check)


def test_workers_drive_one_point_after_the_other(paced, served):
    team = [Thread(), Thread()]
    for _ in range(2):
        assert run_together(load(paced, served.base_url), team, own_clock="").failure is None


def test_a_warm_up_that_fails_leaves_nobody_waiting(paced):
    warmup = paced.prompts(1)
    team = [Thread(), Thread()]
    seen = run_together(load(paced, "http://127.0.0.1:9", warmup=warmup), team, own_clock="")
    result = seen.result()
    assert seen.failure == result.reason
    assert result.status is Status.FAILED
    assert "warm-up" in result.reason or "could not start" in result.reason
    assert all(worker.call("clock").result(60) for worker in team)  # both threads of each are free again
    assert all(worker.call("arm").result(60) is None for worker in team)


def test_another_machines_clock_is_read_by_the_quickest_answer():
    clock = read_clock(Thread(ahead_s=7.0, delay_s=0.01), own_clock="here")
    assert clock.ahead_s == pytest.approx(7.0, abs=clock.uncertainty_s + 1e-3)
    assert clock.uncertainty_s > 0.004  # half of the delay is its own
    own = LoadgenActor().clock()[0]
    assert read_clock(Thread(), own_clock=own) == (0.0, 0.0)
