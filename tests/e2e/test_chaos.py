"""Thirty SIGKILLs over one small sweep: at the end its table is that of a sweep nobody disturbed.

Who dies is drawn from a seed, and when within the life of the victim. The sweep is started again after its driver died,
with `retry_failed=true` after it ended with failed points, and with more repeats when it was done before all had died.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sweep_process import SERVER, Start, SweepProcess, assert_nothing_left
from wandb_files import Run

from harness.store import read_requests, read_rows

SEED = 20261130
VICTIMS = {"driver": 6, "server": 9, "instance actor": 7, "load generator": 8}
SWEEP = (
    *("experiment=quickstart", "offload=full_kv,hisparse_sync", "load.concurrencies=[1,2]", "tracker.mode=offline"),
    *("workload.input_len=64", "workload.output_len=48", "cluster.retry_wait_s=0.01", "cluster.retries=8"),
)
REPEATS = 8  # enough for the sweep to outlast most kills: each end by itself costs a start of Ray
RAY_S = 150.0  # helpers of a Ray that was killed while it started end by themselves, a minute later
FIND = {
    "server": (SERVER,),
    "instance actor": ("ray::", "InstanceActor"),
    "load generator": ("ray::", "LoadgenActor"),
}
IDENTITY = ["experiment", "cell_id", "engine", "model", "selector", "platform", "offload", "top_k", "cache_slots"]
IDENTITY += ["workload", "input_len", "output_len", "concurrency", "num_requests", "repeat", "status", "reason"]
COUNTS = ["completed", "failed", "total_input_tokens", "total_output_tokens", "decode_tokens"]


class Chaos:
    """A sweep that is started again for as long as it has points to run."""

    def __init__(self, start: Start) -> None:
        self._start, self._started, self.repeats = start, 0, REPEATS
        self.run = self.begin()

    def begin(self, *overrides: str) -> SweepProcess:
        self._started += 1
        print(f"run {self._started}: {self.repeats} repeats")
        self.run = self._start(*overrides, f"load.repeats={self.repeats}", name=f"run{self._started}", base=SWEEP)
        return self.run

    def go_on(self) -> None:
        """Start it again if it has ended by itself."""
        if self.run.running:
            return
        code = self.run.end()
        assert code in (0, 1), self.run.said()
        assert "Traceback" not in self.run.said(), self.run.said()
        assert_nothing_left(self.run, within_s=RAY_S)
        self.repeats += 2 * (code == 0)
        self.begin("retry_failed=true")

    def kill(self, victim: str, after_s: float) -> None:
        """SIGKILL to one process of that kind, so long after there is one."""
        while True:
            self.go_on()
            found = [psutil.Process(self.run.pid)] if victim == "driver" else self.run.watch.find(*FIND[victim])
            if found and self._wait(after_s):
                with suppress(psutil.NoSuchProcess):  # it has ended meanwhile: the next one then
                    found[0].kill()
                    break
            time.sleep(0.05)
        if victim == "driver":
            assert self.run.end() == -signal.SIGKILL
            assert_nothing_left(self.run, within_s=RAY_S)
            self.begin()

    def _wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return self.run.running

    def finish(self) -> None:
        for _ in range(4):
            code = self.run.end()
            assert_nothing_left(self.run, within_s=RAY_S)
            if code == 0:
                return
            assert code == 1 and "Traceback" not in self.run.said(), self.run.said()
            self.begin("retry_failed=true")
        pytest.fail(self.run.said())


@pytest.mark.timeout(3600)
def test_thirty_kills_leave_the_table_of_an_undisturbed_sweep(start: Start, results: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    victims = [victim for victim, count in VICTIMS.items() for _ in range(count)]
    rng.shuffle(victims)
    assert len(victims) == 30
    chaos = Chaos(start)
    begin = time.monotonic()
    for victim in victims:
        chaos.kill(victim, rng.uniform(0.0, 6.0 if victim == "driver" else 1.5))
        print(f"{time.monotonic() - begin:6.1f} s: killed a {victim}")
    chaos.finish()
    assert_tidy(results)

    shutil.move(results, tmp_path / "disturbed")
    calm = start(f"load.repeats={chaos.repeats}", name="calm", base=SWEEP)
    assert calm.end() == 0, calm.said()
    disturbed, undisturbed = read_rows(tmp_path / "disturbed"), read_rows(results)
    assert len(undisturbed) == 4 * chaos.repeats
    for columns in (IDENTITY, COUNTS):
        assert disturbed[columns].to_csv() == undisturbed[columns].to_csv()
    for ours, theirs in zip(disturbed["point_path"], undisturbed["point_path"], strict=True):
        ours = ours.replace(str(results), str(tmp_path / "disturbed"))
        assert_same_requests(Path(ours), Path(theirs))
    assert_logged_once(tmp_path / "disturbed")


def assert_tidy(results: Path) -> None:
    """No half-written point, nothing temporary, nobody who holds the folder."""
    hidden = [path for path in results.rglob(".*") if path.name != ".lock"]
    assert hidden == []
    assert (results / ".lock").read_bytes() == b""


def assert_same_requests(ours: Path, theirs: Path) -> None:
    columns = ["request_id", "prompt_sha", "input_len", "output_len", "output_tokens", "error"]
    one, other = (
        read_requests(point, columns).sort_values("request_id").to_csv(index=False) for point in (ours, theirs)
    )
    assert one == other, ours


def assert_logged_once(folder: Path) -> None:
    """W&B's offline files of all the drivers together hold no ok point twice."""
    seen: Counter[tuple[str, int, int, str]] = Counter()
    for file in folder.glob("wandb/offline-run-*/run-*.wandb"):
        run = Run(file)
        if run.run and run.run.job_type == "cell":
            seen.update((run.run.run_id, p["concurrency"], p["repeat"], p["status"]) for p in run.points)
    ok = {key: count for key, count in seen.items() if key[-1] == "ok"}
    assert ok and max(ok.values()) == 1, ok
