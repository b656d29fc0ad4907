"""The paced server as a child process, for the benches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paced_server(scenario: str, first_ms: float, step_ms: float) -> Iterator[str]:
    """The URL of a server of one scenario, which ends with the block."""
    pace = ["--scenario", scenario, "--first-ms", str(first_ms), "--step-ms", str(step_ms)]
    command = [sys.executable, "-m", "harness.loadgen.paced", *pace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
