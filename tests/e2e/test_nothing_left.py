"""Whatever ends a run, nothing of it goes on, what was finished is kept, and the same command goes on."""

from __future__ import annotations

import html
import json
import signal
import socket
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sweep_process import (
    Start,
    assert_interrupted,
    assert_nothing_left,
    listening_ports,
    mtimes,
)
from wandb_files import stored_runs

from harness.records import Status
from harness.store import read_env, read_requests, read_row, read_rows

# long enough to be met in the middle, short enough to wait for
LONG = ("offload=full_kv", "workload.output_len=600")
ONE = (*LONG, "tracker=none", "load.concurrencies=[2]")
TWO = (*LONG, "load.concurrencies=[1,2]")


def statuses(results: Path) -> dict[tuple[str, int], str]:
    rows = read_rows(results)
    return {(o, int(c)): s for o, c, s in zip(rows["offload"], rows["concurrency"], rows["status"], strict=True)}


def point(results: Path, system: str, concurrency: int) -> Path:
    (found,) = results.glob(f"{system}-*/c{concurrency}-r0")
    return found


def assert_closed(ports: list[int]) -> None:
    assert ports
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"port {port} is still open"


def test_ctrl_c_while_ray_starts(start: Start) -> None:
    run = start(*ONE)
    run.until("Ray's first process", lambda: run.watch.find("gcs_server"))
    run.send(signal.SIGINT, to_group=True)
    assert_interrupted(run, run.end())
    assert_nothing_left(run)


def test_sigterm_while_the_server_starts(start: Start) -> None:
    run = start(*ONE)
    run.until_started()
    run.send(signal.SIGTERM)
    assert_interrupted(run, run.end())
    assert_nothing_left(run)


def test_sigterm_to_the_whole_group_in_the_middle_of_a_point(start: Start, results: Path) -> None:
    """What `timeout` does: Ray's own processes must not be hit before they were told to end."""
    run = start(*TWO)
    run.until_measuring(2)
    run.send(signal.SIGTERM, to_group=True)
    assert_interrupted(run, run.end())
    assert_nothing_left(run)
    assert statuses(results) == {("full_kv", 1): "ok"}


def test_ctrl_c_in_the_middle_of_a_point_and_again_during_the_clean_up(start: Start, results: Path) -> None:
    """W&B is on: its process goes too. What was done is not done again."""
    run = start(*TWO, name="interrupted")
    ports = listening_ports(run.until_measuring(2))
    run.send(signal.SIGINT, to_group=True)
    for _ in range(10):
        time.sleep(0.1)
        if run.running:
            run.send(signal.SIGINT, to_group=True)
    assert_interrupted(run, run.end())
    assert_nothing_left(run)
    assert_closed(ports)
    assert statuses(results) == {("full_kv", 1): "ok"}
    before = mtimes(results)

    again = start(*TWO, name="again")
    assert again.end() == 0, again.said()
    assert_nothing_left(again)
    assert statuses(results) == {("full_kv", 1): "ok", ("full_kv", 2): "ok"}
    after = mtimes(results)
    assert {name: after[name] for name in before} == before


def test_ctrl_c_while_the_figures_are_drawn(start: Start, results: Path) -> None:
    short = ("offload=full_kv", "tracker=none")
    run = start(*short, name="interrupted")
    run.until("the figures' folder", (results / "figures").is_dir)
    run.send(signal.SIGINT)
    assert_interrupted(run, run.end())
    assert_nothing_left(run)
    assert statuses(results) == {("full_kv", 1): "ok", ("full_kv", 4): "ok"}

    again = start(*short, name="again")
    assert again.end() == 0, again.said()
    assert "everything is done: 2 points" in again.stdout
    assert (results / "figures" / "report.html").is_file()


def test_a_killed_driver_takes_everything_with_it(start: Start, results: Path) -> None:
    run = start(*TWO, name="killed")
    ports = listening_ports(run.until_measuring(2))
    run.send(signal.SIGKILL)
    assert run.end() == -signal.SIGKILL
    assert_nothing_left(run)
    assert_closed(ports)
    assert statuses(results) == {("full_kv", 1): "ok"}


def test_a_second_driver_is_refused_and_harms_nothing(start: Start, results: Path) -> None:
    first = start(*ONE, name="first")
    first.until_started()
    first.send(signal.SIGSTOP)  # it must not be done before the second one has come so far
    second = start(*ONE, name="second")
    assert second.end() == 2
    assert second.stderr.count("\n") == 1
    assert f"is being written by process {first.pid} on " in second.stderr
    assert not second.watch.ever("raylet")
    first.send(signal.SIGCONT)
    assert first.end() == 0, first.said()
    assert statuses(results) == {("full_kv", 2): "ok"}


def test_a_killed_server_fails_its_cell_and_the_next_one_runs(start: Start, results: Path) -> None:
    run = start(*TWO, "offload=full_kv,hisparse_sync", "load.concurrencies=[2,1]", "cluster.retries=0")
    run.until_measuring(2).kill()
    assert run.end() == 1, run.said()
    assert_nothing_left(run)
    assert statuses(results) == {
        ("full_kv", 1): "failed",
        ("full_kv", 2): "failed",
        ("hisparse_sync", 1): "ok",
        ("hisparse_sync", 2): "ok",
    }
    for concurrency in (1, 2):
        reason = read_row(point(results, "full_kv", concurrency)).reason
        assert reason is not None and "the server ended with exit code -9" in reason
        assert reason in run.stdout
    requests = read_requests(point(results, "full_kv", 2))
    assert len(requests) == 2 and requests["error"].notna().all()  # what the client saw is kept
    assert "Traceback" not in run.said()
    assert "2 points failed" in run.stderr


def test_a_killed_load_generator_fails_its_point_and_another_drives_the_next(start: Start, results: Path) -> None:
    run = start(*TWO, "tracker=none", "load.concurrencies=[2,1]", "cluster.retries=0")
    run.until_measuring(2)
    loadgen, *_ = run.watch.find("ray::", "LoadgenActor")
    loadgen.kill()
    assert run.end() == 1, run.said()
    assert_nothing_left(run)
    assert statuses(results) == {("full_kv", 1): "ok", ("full_kv", 2): "failed"}
    reason = read_row(point(results, "full_kv", 2)).reason
    assert reason is not None and reason.startswith("the load generator died")
    assert "Traceback" not in run.said()


def test_a_killed_server_and_a_killed_load_generator_are_replaced(start: Start, results: Path) -> None:
    run = start(*TWO, "tracker=none", "load.concurrencies=[2,1]", "cluster.retry_wait_s=1")
    run.until_measuring(2).kill()
    run.until("another server", lambda: "try 2 of 3" in run.stdout)
    run.until_measuring(2)
    loadgen, *_ = run.watch.find("ray::", "LoadgenActor")
    loadgen.kill()
    assert run.end() == 0, run.said()
    assert_nothing_left(run)
    assert statuses(results) == {("full_kv", 1): "ok", ("full_kv", 2): "ok"}
    said = read_env(point(results, "full_kv", 2))["scheduling"]
    assert said["tries"] == 3
    server, client = said["failures"]
    assert "the server ended with exit code -9" in server and client.startswith("the load generator died")
    assert "Traceback" not in run.said()


def test_a_spent_budget_leaves_points_for_the_same_command(start: Start, results: Path) -> None:
    short = ("offload=full_kv,hisparse_sync", "tracker=none", "load.concurrencies=[1]")
    first = start(*short, "cluster.budget_s=0.001", name="first")
    assert first.end() == 3, first.said()
    assert_nothing_left(first)
    assert "2 points left to run, the same command goes on" in first.stderr
    again = start(*short, name="again")
    assert again.end() == 0, again.said()
    assert_nothing_left(again)
    assert statuses(results) == {("full_kv", 1): "ok", ("hisparse_sync", 1): "ok"}


def test_ctrl_c_with_cells_side_by_side(start: Start) -> None:
    more = ("offload=full_kv,hisparse_sync", "platform.num_cpus=0.5", "cluster.loadgen_cpus=0.5")
    run = start(*ONE, *more, "cluster.exclusive=false")
    run.until("two servers", lambda: len(run.watch.find("harness.engine.server")) >= 2)
    run.send(signal.SIGINT, to_group=True)
    assert_interrupted(run, run.end())
    assert_nothing_left(run)


def test_a_server_that_cannot_start_says_why_and_the_next_cell_runs(
    start: Start, results: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "no_tokenizer"  # the right model's config, so that it is found out only by the server
    folder.mkdir()
    theirs = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32}
    theirs |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    theirs |= {"head_dim": 16, "intermediate_size": 64, "vocab_size": 512, "rope_theta": 100000.0}
    theirs |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(theirs))
    save_file({"unread": np.zeros(1, np.float32)}, folder / "model.safetensors")
    ours = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16}
    ours |= {"intermediate_size": 64, "vocab_size": 512}
    model = ("model=smollm2_135m", "selector=dense", *(f"model.{key}={value}" for key, value in ours.items()))
    cells = ("offload=full_kv", "tracker=none", "load.concurrencies=[1]", *model, f"model.weights={folder},random")
    run = start(*cells, name="run")
    assert run.end() == 1, run.said()
    assert_nothing_left(run)
    failed, fine = sorted(results.glob("*/c1-r0"), key=lambda path: read_row(path).status.value)
    assert [read_row(path).status for path in (failed, fine)] == [Status.FAILED, Status.OK]
    reason = read_row(failed).reason
    assert reason is not None and reason.startswith("the server ended with exit code 1: error: ")
    assert "has no tokenizer.json" in (failed / "server.log").read_text()
    assert "Traceback" not in run.said()
    assert reason.split(": ", 1)[1] in html.unescape((results / "figures" / "report.html").read_text())

    again = start(*cells, name="again")
    assert again.end() == 1, again.said()
    assert "everything is done: 2 points" in again.stdout
    assert "1 point failed or invalid" in again.said() and "retry_failed=true" in again.said()


def test_an_infeasible_cell_is_a_row_with_its_reason(start: Start, results: Path) -> None:
    run = start("offload=full_kv", "engine.device_kv_budget=100KiB")
    assert run.end() == 0, run.said()
    assert_nothing_left(run)
    assert not run.watch.ever("raylet")
    assert statuses(results) == {("full_kv", 1): "infeasible", ("full_kv", 4): "infeasible"}
    reason = read_row(point(results, "full_kv", 1)).reason
    assert reason is not None and "raise engine.device_kv_budget" in reason
    assert "raise engine.device_kv_budget" in (results / "figures" / "report.html").read_text()
    assert set(read_env(point(results, "full_kv", 1))) == {"driver"}
    assert stored_points(results) == [{"infeasible"}]


def stored_points(results: Path) -> list[set[str]]:
    return [{p["status"] for p in run.points} for name, run in stored_runs(results).items() if name != "report"]
