"""Ours beside others on the paced server: python -m harness.loadgen.bench [--full] [--clients ours sglang]

Every client runs the same closed loops against the same server; the server's own record is the truth. Errors are
of the means of TTFT, TPOT and E2E latency. CPU per token is the difference of a long and a short run, over the
difference of their tokens: what a client needs to start does not count. The last line is JSON. Without --full
it takes about 15 minutes: the scenarios in which clients were seen to differ most, and each CPU time twice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness.loadgen.bench.clients import CLIENTS, Job, Report, interpreter, run
from harness.loadgen.bench.install import write_tokenizer
from harness.loadgen.bench.native import cross_check
from harness.loadgen.native import reader_here
from harness.loadgen.paced.child import paced_server
from harness.loadgen.paced.scenarios import SCENARIOS

ACCURACY = ("plain", "four_per_event", "held_text", "late_usage", "error_event")
MORE = ("role_first", "final_usage", "bundled", "speculative", "half_characters", "closed", "too_short")
STREAMS, LONG = 64, 500  # of the CPU time: streams, tokens of each
TTFT_MS, STEP_MS = 200, 20
STEADY_S = 0.5  # after the first request
BEFORE_STEADY = int((1e3 * STEADY_S - TTFT_MS) / STEP_MS) + 1  # tokens of each stream until then
START_S = 120.0  # a client that sends nothing for so long has failed
ROUNDS, ROUNDS_IN_FULL = 3, 5  # of the CPU time
MANY = 256
ASIDE = {"sglang-rust": "compiled: for information"}


def main() -> None:
    """Run, print the table, then the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m harness.loadgen.bench", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more scenarios, clients and CPU times: 40 min")
    parser.add_argument("--clients", nargs="+", choices=list(CLIENTS))
    parser.add_argument("--scenarios", nargs="*", choices=list(SCENARIOS))
    parser.add_argument("--peers", type=Path, default=Path("build/peers"), help="where the others are installed")
    parser.add_argument("--no-cpu", action="store_true", help="accuracy at concurrency 8 only")
    parser.add_argument("--no-native", action="store_true", help="leave out the native server")
    args = parser.parse_args()
    clients = args.clients or [name for name in CLIENTS if args.full or name not in ASIDE]
    scenarios = (ACCURACY + MORE * args.full) if args.scenarios is None else args.scenarios
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with tempfile.TemporaryDirectory() as scratch:
        bench = _Bench(args.peers.resolve(), Path(scratch))
        rows = [row for scenario in scenarios for row in bench.accuracy(clients, scenario)]
        many = [] if args.no_cpu else bench.many_streams(clients)
        cpu = {} if args.no_cpu else bench.cpu(clients, ROUNDS_IN_FULL if args.full else ROUNDS)
        native = {} if args.no_native else _native(args.peers.resolve(), Path(scratch))
    load = os.getloadavg()
    print(f"load average {load[0]:.1f} on {os.cpu_count()} CPUs; our reader: {reader_here()}")
    for scenario, ours in (best := _most_accurate([*rows, *many])).items():
        print(f"{scenario:16} {'ours is' if ours else 'OURS IS NOT'} the most accurate")
    found = {
        "accuracy": rows,
        "most_accurate": best,
        "many_streams": many,
        "cpu_us_per_token": cpu,
        "cpu_ratio": _cpu_ratio(cpu),
    }
    print(json.dumps(found | {"native": native, "load_average": load, "reader": reader_here()}))


class _Bench:
    def __init__(self, peers: Path, scratch: Path) -> None:
        self._peers, self._scratch = peers, scratch
        self._tokenizer = write_tokenizer(scratch / "words", [f"w{number}" for number in range(1000)])
        self._runs = 0

    def _run(
        self, name: str, url: str, concurrency: int, requests: int, output_len: int, *, counted: bool = False
    ) -> Report | str:
        """counted: its CPU time is that of its steady part."""
        self._runs += 1
        job = Job(
            url=url,
            concurrency=concurrency,
            requests=requests,
            output_len=output_len,
            folder=self._scratch / f"{name}-{self._runs}",
            tokenizer=self._tokenizer,
        )
        try:
            steady = partial(_wait_steady, url) if counted else lambda: None
            return run(CLIENTS[name], interpreter(name, self._peers), job, steady)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            return f"{error}"

    def accuracy(self, clients: list[str], scenario: str) -> list[dict[str, Any]]:
        """One scenario at concurrency 8: 24 requests of 32 tokens, 200 ms to the first, 10 ms each after it."""
        with paced_server(scenario, 200, 10) as url:
            return [_compare(name, scenario, self._run(name, url, 8, 24, 32), url) for name in clients]

    def many_streams(self, clients: list[str]) -> list[dict[str, Any]]:
        """256 streams of 50 tokens/s, beside the server on the same cores."""
        with paced_server("plain", 200, 20) as url:
            return [_compare(name, f"{MANY} streams", self._run(name, url, MANY, MANY, 100), url) for name in clients]

    def cpu(self, clients: list[str], rounds: int) -> dict[str, float | None]:
        """Microseconds of CPU per token at 64 streams of 50 tokens/s, the median of `rounds` runs in turn.

        Of the time from half a second after the first request arrived to the client's end: what it needs to start
        differs by more from run to run than all its tokens cost.
        """
        found: dict[str, list[float]] = {name: [] for name in clients}
        with paced_server("plain", TTFT_MS, STEP_MS) as url:
            for _ in range(rounds):
                for name in clients:
                    _served(url)  # those of the client before
                    if isinstance(report := self._run(name, url, STREAMS, STREAMS, LONG, counted=True), Report):
                        found[name].append(report.cpu_s / (STREAMS * (LONG - BEFORE_STEADY)) * 1e6)
        spent = {name: median(of) if of else None for name, of in found.items()}
        for name, of in found.items():
            aside = f"  ({ASIDE[name]})" if name in ASIDE else ""
            runs = " ".join(f"{value:.1f}" for value in of)
            print(f"{name:12} {_show(spent[name])} us of CPU per token at {STREAMS} streams (runs: {runs}){aside}")
        if ratio := _cpu_ratio(spent):
            print(f"ours takes {ratio:.2f} of the CPU per token of the best of the others", flush=True)
        return spent


def _wait_steady(url: str) -> None:
    """Until half a second after the first request."""
    deadline_s = time.monotonic() + START_S
    while not _served(url) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    time.sleep(STEADY_S)


def _served(url: str) -> list[dict[str, Any]]:
    """What requests the server has had since it was asked last."""
    with urllib.request.urlopen(url + "/truth") as response:
        served: list[dict[str, Any]] = json.load(response)
    return served


def _most_accurate(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Whether in each scenario no other client is nearer to the truth than ours, false successes first."""
    found: dict[str, dict[str, tuple[int, float]]] = {}
    for row in rows:
        if "error" in row:
            found.setdefault(row["scenario"], {})[row["client"]] = (row["false_successes"], row["error"])
    return {scenario: of["ours"] == min(of.values()) for scenario, of in found.items() if "ours" in of}


def _cpu_ratio(spent: dict[str, float | None]) -> float | None:
    """Ours over the least of the others, but for those in ASIDE; None without both."""
    others = [value for name, value in spent.items() if value and name != "ours" and name not in ASIDE]
    ours = spent.get("ours")
    return ours / min(others) if ours and others else None


def _native(peers: Path, scratch: Path) -> dict[str, Any]:
    """SGLang's client and ours in turn on the native server."""
    found = cross_check(peers, scratch, rounds=3)
    for name, said in found["said"].items():
        print(
            f"native server    {name:12} ttft {said['ttft_ms']:.1f} ms  {said['tokens_per_s']:.1f} tokens/s", flush=True
        )
    return found


def _truth(url: str, requests: int, succeed: bool) -> dict[str, float | None]:
    """Means over the last `requests` requests: clients may send some before they measure."""
    truths = sorted(_served(url), key=lambda truth: truth["arrived_s"])[-requests:]
    if not succeed:
        return {"ttft_ms": None, "tpot_ms": None, "e2el_ms": None, "completed": 0}
    whole = [truth for truth in truths if truth["times_s"]]
    return {
        "ttft_ms": 1e3 * fmean(t["times_s"][0] - t["arrived_s"] for t in whole),
        "tpot_ms": 1e3 * fmean((t["times_s"][-1] - t["times_s"][0]) / (sum(t["tokens"]) - 1) for t in whole),
        "e2el_ms": 1e3 * fmean(t["times_s"][-1] - t["arrived_s"] for t in whole),
        "completed": len(truths),
    }


def _compare(name: str, what: str, report: Report | str, url: str) -> dict[str, Any]:
    """One row: what was said, what was true, and the largest relative error."""
    scenario = SCENARIOS.get(what)
    requests = MANY if scenario is None else 24
    true = _truth(url, requests, succeed=scenario is None or scenario.expect is None)
    row: dict[str, Any] = {"scenario": what, "client": name, "truth": true}
    if isinstance(report, str):
        print(f"{what:16} {name:12} {report}", flush=True)
        return row | {"failed": report}
    said = {key: getattr(report, key) for key in true}
    wrong = [abs(said[key] - value) / value for key, value in true.items() if value and said[key] is not None]
    row |= {
        "said": said,
        "error": max(wrong, default=0.0),
        "false_successes": max(0, report.completed - int(true["completed"] or 0)),
    }
    texts = [f"{key.removesuffix('_ms')} {_show(said[key])} ({_show(value)})" for key, value in true.items()]
    print(f"{what:16} {name:12} error {row['error']:6.1%}  {'  '.join(texts)}", flush=True)
    return row


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


if __name__ == "__main__":
    main()
