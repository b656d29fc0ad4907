"""The native server under two clients, SGLang's bench_serving and ours, in turn: they must say the same.

The server runs SmolLM2, whose tokens are nearly always whole characters. Of a model of random bytes many a first token
has no text yet, and bench_serving's TTFT ends at the first text where ours ends at the first token.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from harness.loadgen.bench.clients import CLIENTS, Job, Report, interpreter, run
from harness.loadgen.bench.install import write_tokenizer

_COMPOSE = "import sys; from harness import config, schema; print(schema.to_yaml(config.load_cells(sys.argv[1:])[0]))"
_MODEL = "smollm2_135m"
_CELL = ("experiment=smollm2_quest", "offload=hisparse_sync")
_CONCURRENCY, REQUESTS, OUTPUT_LEN = 4, 16, 48
_INPUT_LEN = 64  # words of one letter with a blank between two, each a token of the server's
_STOP_S = 20


@contextmanager
def native_server(folder: Path) -> Iterator[str]:
    """The base URL of a native server, which ends with the block."""
    subprocess.run([sys.executable, "-m", "harness.fetch", _MODEL], check=True, stdout=subprocess.DEVNULL)
    config = folder / "cell.yaml"
    composed = subprocess.run([sys.executable, "-c", _COMPOSE, *_CELL], check=True, capture_output=True, text=True)
    config.write_text(composed.stdout)
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "harness.engine.server", "--config", str(config), "--port", "0"]
    command += ["--ready-file", str(ready), "--exit-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():  # it prints a line once it serves
                raise RuntimeError(f"the native server ended with {process.wait()}")
            deadline_s = time.monotonic() + _STOP_S
            while not ready.exists() and time.monotonic() < deadline_s:
                time.sleep(0.05)
            yield json.loads(ready.read_text())["url"]
        finally:
            process.terminate()
            process.wait(_STOP_S)


def cross_check(peers: Path, scratch: Path, rounds: int) -> dict[str, Any]:
    """Both clients in turn, `rounds` times. Medians of each, and how far SGLang's are from ours (ratio - 1)."""
    tokenizer = write_tokenizer(scratch / "letters", words=[chr(code) for code in range(ord("a"), ord("z") + 1)])
    reports: dict[str, list[Report]] = {name: [] for name in ("sglang", "ours")}
    with native_server(scratch) as url:
        for number in range(rounds + 1):
            for name in reports:
                job = Job(
                    url=url,
                    model=_MODEL,
                    concurrency=_CONCURRENCY,
                    requests=REQUESTS,
                    input_len=_INPUT_LEN,
                    output_len=OUTPUT_LEN,
                    folder=scratch / f"{name}-native-{number}",
                    tokenizer=tokenizer,
                )
                report = run(CLIENTS[name], interpreter(name, peers), job)
                if number:  # the first round warms the server
                    reports[name].append(report)
    said = {name: {key: _median(of, key) for key in ("ttft_ms", "tokens_per_s")} for name, of in reports.items()}
    off = {key: said["sglang"][key] / value - 1 for key, value in said["ours"].items()}
    completed = {name: [report.completed for report in of] for name, of in reports.items()}
    tokens = {name: [report.tokens for report in of] for name, of in reports.items()}
    return {"said": said, "off": off, "completed": completed, "tokens": tokens, "requests": REQUESTS}


def _median(reports: list[Report], key: str) -> float:
    return median(getattr(report, key) for report in reports)
