"""The guard kills what it was given when its owner is killed, and only then."""

from __future__ import annotations

import subprocess
import sys

from harness.guard import killed_with_us

_OWNER = """
import sys, time
from harness.guard import killed_with_us
with killed_with_us([int(sys.argv[1])]):
    print("guarded", flush=True)
    time.sleep(600)
"""


def test_it_kills_when_the_owner_is_killed() -> None:
    victim = subprocess.Popen(["sleep", "600"])
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(victim.pid)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "guarded\n"
        assert victim.poll() is None
        owner.kill()
        assert victim.wait(200) == -9
    finally:
        for process in (owner, victim):
            process.kill()
            process.wait()


def test_it_does_nothing_when_the_body_ends() -> None:
    victim = subprocess.Popen(["sleep", "600"])
    try:
        with killed_with_us([victim.pid]):
            pass
        assert victim.poll() is None
    finally:
        victim.kill()
        assert victim.wait() == -9


def test_no_processes_is_fine() -> None:
    with killed_with_us([]):
        pass
