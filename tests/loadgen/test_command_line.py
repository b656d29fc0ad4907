"""`python -m harness.loadgen` against a server: the line it appends, what scripts read from it, what it refuses."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import paced_process
import pytest

from harness.loadgen.__main__ import main
from harness.loadgen.arguments import parse
from harness.loadgen.bench.install import write_tokenizer
from harness.loadgen.job import load_config, point_load
from harness.loadgen.paced.child import paced_server
from harness.records import CLIENT_MEASURES
from harness.schema import ArrivalKind, LoadMode

pytestmark = pytest.mark.usefixtures("reader")

# read from the result files of these clients by the scripts around them
SGLANG = """\
    backend dataset_name request_rate max_concurrency sharegpt_output_len random_input_len random_output_len
    random_range_ratio duration completed total_input_tokens total_output_tokens request_throughput input_throughput
    output_throughput total_throughput mean_e2e_latency_ms median_e2e_latency_ms std_e2e_latency_ms p99_e2e_latency_ms
    mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms
    mean_itl_ms median_itl_ms std_itl_ms p95_itl_ms p99_itl_ms concurrency max_output_tokens_per_s
    max_concurrent_requests"""
VLLM = """\
    date backend model_id num_prompts request_rate burstiness max_concurrency duration completed failed
    total_input_tokens total_output_tokens request_throughput request_goodput output_throughput total_token_throughput
    mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms
    mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms std_e2el_ms p99_e2el_ms"""
DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")

# the machine of a test may be as busy as it likes
PATIENT = ["--limit", "max_lag_p99_ms=1e6", "--limit", "max_lag_share=1e6", "--limit", "max_cpu_share=1e6"]
HANG_S = 240.0  # of whatever is waited for
SIX = ["--model", "m", "--num-prompts", "6", "--random-input-len", "12", "--random-output-len", "5"]


@pytest.fixture
def run(served, tmp_path, capsys):
    """Exit status, what was printed, and all lines of the result file."""
    file = tmp_path / "runs.jsonl"

    def command(*arguments):
        code = main(["--base-url", served.base_url, "--output-file", str(file), *PATIENT, *arguments])
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return code, capsys.readouterr().out, lines

    return command


def test_a_run_is_one_line_that_their_scripts_can_read(run, served, reader):
    served.scenario.together = range(1, 4)  # the three after the warm-up
    code, printed, lines = run(
        *SIX, "--max-concurrency", "3", "--output-details", "--goodput", "ttft:60000", "tpot:9000"
    )
    assert code == 0
    (line,) = lines
    assert set(SGLANG.split()) | set(VLLM.split()) | set(DETAILS) | set(CLIENT_MEASURES) <= set(line)
    assert (line["status"], line["reason"], line["count_source"]) == ("ok", None, "continuous_usage")
    assert (line["completed"], line["failed"], line["total_input_tokens"], line["total_output_tokens"]) == (
        6,
        0,
        72,
        30,
    )
    assert line["reader"].startswith(reader)
    assert line["duration"] == line["duration_s"]
    assert line["mean_e2e_latency_ms"] == line["mean_e2el_ms"]
    assert line["total_throughput"] == line["total_token_throughput"] == pytest.approx(102 / line["duration"])
    assert line["input_throughput"] == pytest.approx(72 / line["duration"])
    assert (line["request_rate"], line["max_concurrency"], line["goodput"]) == ("inf", 3, 1.0)
    assert line["ttfts"] and 1e3 * sum(line["ttfts"]) / 6 == pytest.approx(line["mean_ttft_ms"])
    assert len(line["itls"]) == 6
    assert all(len(gaps) <= 4 for gaps in line["itls"])  # fewer where a busy machine read the first tokens together
    assert line["output_lens"] == [5] * 6
    assert served.max_running == 3
    assert "6 completed" in printed and "TTFT" in printed


def test_lines_are_appended_and_another_pace_sends_other_prompts(run, served):
    for pace in (["--max-concurrency", "2"], ["--request-rate", "200"], ["--request-rate", "300"], []):
        code, _, lines = run(*SIX, *pace)
        assert code == 0
    assert [line["request_rate"] for line in lines] == ["inf", 200, 300, "inf"]
    assert len({truth.prompt for truth in served.truths}) == 4 * 7  # a warm-up request each
    run(*SIX)  # the same again
    assert len({truth.prompt for truth in served.truths}) == 4 * 7
    run(*SIX, "--seed", "1")
    assert len({truth.prompt for truth in served.truths}) == 5 * 7


def test_questions_of_a_longbench_file_are_sent(run, served, tmp_path):
    words = [f"word{number}" for number in range(200)]
    questions = [
        {"_id": str(number), "domain": "any", "question": f"word{number} word150", "answer": "A"}
        | {f"choice_{letter}": f"word{number} word{place}" for place, letter in enumerate("ABCD")}
        | {"context": " ".join(words[number:] * 3)}
        for number in range(8)
    ]
    file = tmp_path / "questions.json"
    file.write_text(json.dumps(questions))
    tokenizer = write_tokenizer(tmp_path / "tokenizer", words)
    dataset = [
        "--model",
        "m",
        "--dataset-name",
        "longbench-v2",
        "--dataset-path",
        str(file),
        "--tokenizer",
        str(tokenizer),
    ]
    lengths = ["--max-input-len", "300", "--random-output-len", "5", "--num-prompts", "6", "--warmup-requests", "2"]
    code, _, (line,) = run("--model", "m", *dataset, *lengths, "--max-concurrency", "3")
    assert (code, line["completed"], line["total_input_tokens"]) == (0, 6, 6 * 300)
    prompts = {truth.prompt for truth in served.truths}
    assert {len(prompt) for prompt in prompts} == {300} and len(prompts) >= 6
    number_of = {word: number for number, word in enumerate(["[UNK]", *words])}
    asked = {(number_of[f"word{n}"], number_of["word150"]) for n in range(8)}  # no context has these pairs
    assert all(len(asked & set(itertools.pairwise(prompt))) == 1 for prompt in prompts)


def test_a_run_that_failed_says_so_in_its_line_and_its_status(run, served):
    served.scenario.extra_tokens = -1
    code, printed, (line,) = run(*SIX, "--warmup-requests", "0")
    assert code == 1
    assert line["status"] == "invalid"
    assert "wrong_length x6" in line["reason"] and "wrong_length" in printed
    assert (line["completed"], line["mean_ttft_ms"]) == (0, None)
    served.scenario.status = 500
    code, printed, lines = run(*SIX)
    assert (code, lines[-1]["status"]) == (1, "failed")
    assert "http_5xx" in lines[-1]["reason"]


def test_lengths_follow_the_range_ratio(run, served):
    run(*SIX[:-4], "--random-input-len", "40", "--random-output-len", "8", "--random-range-ratio", "0.5")
    lengths = [len(truth.prompt) for truth in served.truths]
    assert 20 <= min(lengths) < max(lengths) <= 40
    assert {truth.tokens for truth in served.truths} <= set(range(4, 9))


def test_processes_share_a_run(run, served):
    code, _, (line,) = run(*SIX, "--max-concurrency", "4", "--processes", "2")
    assert code == 0
    assert (line["completed"], line["load_processes"]) == (6, 2)
    assert len({truth.prompt for truth in served.truths}) == 7


def test_a_trace_is_replayed(run, served, tmp_path):
    trace = tmp_path / "azure.csv"
    stamps = ["18:17:03.0", "18:17:03.1", "18:17:04.0"]
    rows = [f"2023-11-16 {stamp},{10 + i},{2 + i}" for i, stamp in enumerate(stamps)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    replay = ["--dataset-name", "azure", "--dataset-path", str(trace), "--use-trace-timestamps", "--slowdown", "0.5"]
    code, _, (line,) = run("--model", "m", "--num-prompts", "3", *replay, "--output-details", "--warmup-requests", "0")
    assert code == 0
    assert line["request_rate"] == "trace"
    assert line["start_times"] == pytest.approx([0, 0.05, 0.5])
    assert (line["input_lens"], line["output_lens"]) == ([10, 11, 12], [2, 3, 4])


def parsed(*arguments):
    return parse(["--base-url", "http://h:1", *SIX, *arguments])


def test_flags_become_the_pace():
    closed = load_config(parsed("--max-concurrency", "4", "--stagger-s", "0.5", "--limit", "idle_timeout_s=7"))
    assert (closed.mode, closed.stagger_s, closed.idle_timeout_s) == (LoadMode.closed, 0.5, 7)
    poisson = load_config(parsed("--request-rate", "3"))
    assert (poisson.mode, poisson.arrivals, poisson.request_rate) == (LoadMode.open, ArrivalKind.poisson, 3)
    gamma = load_config(parsed("--request-rate", "3", "--burstiness", "0.5"))
    assert (gamma.arrivals, gamma.burstiness) == (ArrivalKind.gamma, 0.5)
    assert load_config(parsed("--request-rate", "3", "--constant-rate")).arrivals is ArrivalKind.constant
    theirs = parsed("--dataset-name", "random-ids", "--num-warmups", "3")
    assert (theirs.dataset_name, theirs.warmup_requests) == ("random", 3)
    assert load_config(parsed("--goodput", "ttft:9", "e2el:100")).slo_e2el_ms == 100


def test_text_without_a_tokenizer_is_sent_as_it_is(tmp_path):
    file = tmp_path / "chats.json"
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]
    file.write_text(json.dumps([{"conversations": turns}]))
    chats = ["--dataset-name", "sharegpt", "--dataset-path", str(file), "--sharegpt-output-len", "9"]
    for backend, endpoint in (("vllm", "completions"), ("sglang-oai-chat", "chat"), ("sglang", "generate")):
        args = parse(
            ["--base-url", "http://h:1", "--model", "m", "--num-prompts", "1", "--warmup-requests", "0", *chats]
            + ["--backend", backend]
        )
        load = point_load(args)
        assert load.endpoint == endpoint
        (prompt,) = load.prompts
        assert (prompt.text, prompt.input_len, prompt.output_len) == ("Why?", None, 9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--num-prompts", "0"], "0 must be at least 1"),
        (["--request-rate", "0"], "must be above 0"),
        (["--request-rate", "nan"], "must be above 0"),
        (["--random-range-ratio", "1.5"], "at most 1"),
        (["--endpoint", "chat"], "chat takes text"),
        (["--dataset-name", "text"], "needs --tokenizer"),
        (["--dataset-name", "sharegpt"], "needs --dataset-path FILE"),
        (["--dataset-name", "sharegpt", "--dataset-path", "x"], "needs --tokenizer, or --sharegpt-output-len"),
        (["--use-trace-timestamps"], "needs --dataset-name mooncake or azure"),
        (["--slowdown", "2"], "needs --use-trace-timestamps"),
        (["--burstiness", "2"], "need --request-rate"),
        (["--request-rate", "1", "--stagger-s", "1"], "closed loop"),
        (["--goodput", "itl:3"], "ttft:MS, tpot:MS or e2el:MS"),
        (["--limit", "speed=3"], "speed is none of"),
        (["--extra-request-body", "[1]"], "must be a JSON object"),
        (["--extra-request-body", "{"], "not JSON"),
        (["--port", "80"], "give --base-url URL, or --port"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(capsys, arguments, said):
    with pytest.raises(SystemExit) as caught:
        parsed(*arguments)
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert said in last


def test_missing_files_and_servers_are_a_line(capsys, tmp_path):
    nowhere = ["--base-url", "http://127.0.0.1:9", "--num-prompts", "3"]
    trace = ["--dataset-name", "mooncake", "--dataset-path", str(tmp_path / "none.jsonl"), "--model", "m"]
    for arguments, said in (
        ([*nowhere, *SIX[4:]], "http://127.0.0.1:9/v1/models"),
        ([*nowhere, *trace], "none.jsonl: No such file"),
        ([*nowhere, *SIX, "--output-file", str(tmp_path / "no" / "f")], "no/f"),
        (["--base-url", "h:1", *SIX], "must be http://HOST"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "url", ["", "http://", "http://h:0", "http://h:99999", "http://h:x", "ftp://h", "http://u:p@h", "http://h/a b"]
)
def test_a_base_url_that_is_none_is_a_line(capsys, url):
    assert main(["--base-url", url, "--num-prompts", "1", *SIX[4:]]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: base_url is {url!r}") and error.count("\n") == 1


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n", b"", b"HTTP/1.1 200 OK\r\n\r\n{}", b"HTTP/1.1 500 No\r\n\r\n"]
)
def test_a_service_without_models_is_a_line(capsys, answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        assert main(["--base-url", url, "--num-prompts", "1", *SIX[4:]]) == 2
        server.join()
    error = capsys.readouterr().err
    assert f"{url}/models: " in error and error.count("\n") == 1


def start(url, *more):
    command = [sys.executable, "-m", "harness.loadgen", "--base-url", url, *PATIENT]
    return subprocess.Popen(
        [*command, "--warmup-requests", "0", *more], stdout=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    )


def heed_ctrl_c():
    """A background job of a shell ignores it, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_has_come(tmp_path, number, processes):
    file = tmp_path / "runs.jsonl"
    many = ["--model", "m", "--num-prompts", "3000", "--random-input-len", "4", "--random-output-len", "5"]
    with paced_server("plain", 20, 5) as url:
        pace = ["--max-concurrency", "2", "--processes", str(processes), "--output-file", str(file)]
        with start(url, *many, *pace) as run:
            deadline_s, served = time.monotonic() + HANG_S, 0
            while served < 6 and time.monotonic() < deadline_s:
                served += len(paced_process.truths(url))
                time.sleep(0.1)
            run.send_signal(number)
            printed = run.communicate(timeout=HANG_S)[0]
    assert run.returncode == 128 + number
    (line,) = map(json.loads, file.read_text().splitlines())
    assert line["status"] == "invalid" and line["reason"].startswith("interrupted when ")
    assert 4 <= line["completed"] < 3000 and line["failed"] <= 2
    assert line["mean_ttft_ms"] > 15
    assert "interrupted" in printed


def test_no_process_outlives_a_killed_parent(tmp_path):
    many = ["--model", "m", "--num-prompts", "4", "--random-input-len", "4", "--random-output-len", "5"]
    with paced_server("plain", 1e3 * HANG_S, 5) as url:
        with start(url, *many, "--max-concurrency", "4", "--processes", "2") as run:
            deadline_s = time.monotonic() + HANG_S
            while not paced_process.truths(url) and time.monotonic() < deadline_s:
                time.sleep(0.1)
            children = children_of(run.pid)
            run.kill()
        assert len(children) >= 2
        while any(map(alive, children)) and time.monotonic() < deadline_s:
            time.sleep(0.1)
    assert not [pid for pid in children if alive(pid)]


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
