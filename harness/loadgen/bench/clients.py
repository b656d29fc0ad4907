"""How each client is run against one server, and how its report is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from harness.loadgen.bench import sglang_client

_LONGEST_RUN_S = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One closed loop against one server."""

    url: str
    model: str = "paced"
    input_len: int = 32
    concurrency: int
    requests: int
    output_len: int
    folder: Path  # for what the client writes
    tokenizer: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a client said, and the CPU time of its processes since it was told to count. Milliseconds; None: it did not
    say."""

    ttft_ms: float | None
    tpot_ms: float | None
    e2el_ms: float | None
    completed: int
    tokens_per_s: float | None
    tokens: int | None = None  # generated, in all
    cpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    name: str
    command: Callable[[Path, Job], list[str]]  # interpreter, job
    read: Callable[[Job], Report]


def run(client: Client, python: Path, job: Job, until_steady: Callable[[], None] = lambda: None) -> Report:
    """Run to the end and read the report. Raises RuntimeError with the client's last words.

    until_steady: returns when its CPU time begins to count; called once it was started.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    log = job.folder / "log.txt"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if client.name in ("ours", "sglang"):
        environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    if client.name != "aiperf":  # which would look for the local tokenizer in its cache
        environment["HF_HUB_OFFLINE"] = "1"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["timeout", str(_LONGEST_RUN_S), *client.command(python, job)],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        try:
            until_steady()
            before_s = _cpu_s(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # Ctrl-C, SIGTERM
            process.terminate()  # `timeout` passes it on
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    try:
        report = client.read(job)
    except (OSError, ValueError, KeyError, IndexError, StopIteration) as error:
        words = " ".join(log.read_text(errors="replace").split())[-300:]
        raise RuntimeError(
            f"{client.name} ended with {process.returncode} and no report ({error!r}): {words}"
        ) from error
    return replace(report, cpu_s=usage.ru_utime + usage.ru_stime - before_s)


def _cpu_s(pid: int) -> float:
    """What a process, those below it and those of them that have ended have computed so far."""
    total_s = 0.0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total_s += sum(process.cpu_times()[:4])  # its own and its ended children's, user and system
    return total_s


def _ours(python: Path, job: Job) -> list[str]:
    lengths = ["--random-input-len", str(job.input_len), "--random-output-len", str(job.output_len)]
    counts = ["--num-prompts", str(job.requests), "--max-concurrency", str(job.concurrency), "--warmup-requests", "0"]
    output = ["--output-file", str(job.folder / "ours.jsonl")]
    target = ["--base-url", job.url, "--model", job.model, "--vocab-size", "256"]
    return [str(python), "-m", "harness.loadgen", *target, *lengths, *counts, *output]


def _sglang(python: Path, job: Job) -> list[str]:
    lengths = ["--random-input-len", str(job.input_len), "--random-output-len", str(job.output_len)]
    return [
        *(str(python), str(Path(sglang_client.__file__)), "--backend", "sglang-oai", "--base-url", job.url),
        *("--model", job.model, "--tokenizer", str(job.tokenizer), "--dataset-name", "random-ids"),
        *(*lengths, "--random-range-ratio", "1", "--num-prompts", str(job.requests), "--warmup-requests", "0"),
        *(
            "--max-concurrency",
            str(job.concurrency),
            "--output-file",
            str(job.folder / "sglang.jsonl"),
            "--disable-tqdm",
        ),
    ]


def _sglang_rust(python: Path, job: Job) -> list[str]:
    return [*_sglang(python, job), "--rust-client"]


def _guidellm(python: Path, job: Job) -> list[str]:
    return [
        *(str(python.parent / "guidellm"), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={job.url},model={job.model}"),
        *("--profile", f"kind=concurrent,streams={job.concurrency}"),
        *("--constraint", f"kind=max_requests,count={job.requests}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={job.input_len},output_tokens={job.output_len}"),
        *("--tokenizer", f"kind=huggingface_auto,model={job.tokenizer}"),
        *("--output", f"kind=json,path={job.folder / 'guidellm.json'}"),
    ]


def _aiperf(python: Path, job: Job) -> list[str]:
    return [
        *(str(python.parent / "aiperf"), "profile", "-m", job.model, "--url", job.url, "--ui", "none"),
        *("--endpoint-type", "completions", "--streaming", "--use-server-token-count"),
        *("--concurrency", str(job.concurrency), "--request-count", str(job.requests)),
        *("--tokenizer", str(job.tokenizer), "--extra-inputs", "ignore_eos:true"),
        *("--prompt-input-tokens-mean", str(job.input_len), "--prompt-output-tokens-mean", str(job.output_len)),
        *("--output-artifact-dir", str(job.folder)),
    ]


def _read_line(name: str) -> Callable[[Job], Report]:
    """The reader of bench_serving's result line, which ours has too."""

    def read(job: Job) -> Report:
        line: dict[str, Any] = json.loads((job.folder / f"{name}.jsonl").read_text().splitlines()[-1])
        e2el = line.get("mean_e2el_ms")
        return Report(
            ttft_ms=line.get("mean_ttft_ms"),
            tpot_ms=line.get("mean_tpot_ms"),
            e2el_ms=line.get("mean_e2e_latency_ms") if e2el is None else e2el,
            completed=line["completed"],
            tokens_per_s=line["output_throughput"],
            tokens=line["total_output_tokens"],
        )

    return read


def _read_guidellm(job: Job) -> Report:
    metrics = json.loads((job.folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]

    def mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    return Report(
        ttft_ms=mean("time_to_first_token_ms"),
        tpot_ms=mean("inter_token_latency_ms"),
        e2el_ms=mean("request_latency") * 1e3,
        completed=metrics["request_totals"]["successful"],
        tokens_per_s=mean("output_tokens_per_second"),
    )


def _read_aiperf(job: Job) -> Report:
    report = json.loads((job.folder / "profile_export_aiperf.json").read_text())

    def mean(name: str) -> float | None:
        return float(report[name]["avg"]) if report.get(name) else None

    return Report(
        ttft_ms=mean("time_to_first_token"),
        tpot_ms=mean("inter_token_latency"),
        e2el_ms=mean("request_latency"),
        completed=int(mean("request_count") or 0),
        tokens_per_s=mean("output_token_throughput"),
    )


CLIENTS = {
    client.name: client
    for client in (
        Client(name="ours", command=_ours, read=_read_line("ours")),
        Client(name="sglang", command=_sglang, read=_read_line("sglang")),
        Client(name="sglang-rust", command=_sglang_rust, read=_read_line("sglang")),
        Client(name="guidellm", command=_guidellm, read=_read_guidellm),
        Client(name="aiperf", command=_aiperf, read=_read_aiperf),
    )
}


def interpreter(name: str, peers: Path) -> Path:
    """The interpreter that has client `name`, installed where it is not."""
    from harness.loadgen.bench.install import python_of

    return Path(sys.executable) if name == "ours" else python_of(name.removesuffix("-rust"), peers)
