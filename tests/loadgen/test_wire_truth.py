"""Every behaviour of a server on the wire: each metric is the truth the server kept, each failure in its class."""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import accumulate

import paced_process
import pytest

from harness.loadgen.metrics import measure
from harness.loadgen.paced.child import paced_server
from harness.loadgen.paced.scenarios import SCENARIOS
from harness.records import LATENCY_MEASURES as LATENCIES

pytestmark = pytest.mark.usefixtures("reader")

FIRST_MS, STEP_MS, OUTPUT_LEN = 60.0, 15.0, 10  # steps that a busy test machine does not blur
RIGHT = [name for name, scenario in SCENARIOS.items() if not scenario.expect and not scenario.hidden]
HIDDEN = [name for name, scenario in SCENARIOS.items() if scenario.hidden]
WRONG = [name for name, scenario in SCENARIOS.items() if scenario.expect]
ENDPOINTS = ("completions", "chat", "generate")
TOTALS = ("completed", "total_output_tokens", "output_throughput")


@pytest.fixture(scope="module")
def base_url():
    with paced_server("plain", FIRST_MS, STEP_MS) as url:
        yield url


def drive(base_url, name, endpoint="completions", *, concurrency=1, count=2, output_len=OUTPUT_LEN):
    paced_process.truths(f"{base_url}/{name}")  # of an earlier test
    asked = paced_process.prompts(count, output_len, endpoint)
    load = paced_process.limits()
    records, held, start_s = paced_process.run(
        f"{base_url}/{name}", asked, endpoint=endpoint, concurrency=concurrency, load=load
    )
    return records, held, start_s, paced_process.truths(f"{base_url}/{name}")


def as_it_was(record, truth, start_s, merged=False):
    """The record with the server's times and counts in place of the client's.

    merged: of events that the client read together (it, or the server before it, had not been run for a while)
    only the last one's time, as the client has it.
    """
    times_s = [time_s - start_s for time_s in truth["times_s"]]
    tokens = truth["tokens"]
    if merged:
        at = dict(zip(accumulate(tokens), times_s, strict=True))
        times_s, tokens = [at[count] for count in accumulate(record.chunk_tokens)], record.chunk_tokens
    return dataclasses.replace(record, chunk_times_s=times_s, chunk_tokens=tokens)


def assert_near(ours, true, names):
    """Within 2% or 2 (milliseconds, or tokens a second)."""
    for name in names:
        if true[name] is None:
            assert ours[name] is None, name
        else:
            assert ours[name] == pytest.approx(true[name], rel=0.02, abs=2), name


def check_truth(base_url, name, endpoint, concurrency):
    paced_process.undisturbed(lambda: check_once(base_url, name, endpoint, concurrency))


def check_once(base_url, name, endpoint, concurrency):
    """Every arrival at its time; and in one of three tries, unless the machine never lets us, nothing merged."""
    for _ in range(3):
        records, held, start_s, truths = drive(base_url, name, endpoint, concurrency=concurrency, count=concurrency)
        assert {key: record.error_detail for key, record in records.items() if record.error} == {}
        assert len(records) == len(truths) == concurrency
        assert held == 0
        for key, record in records.items():
            assert sum(record.chunk_tokens) == record.output_tokens == OUTPUT_LEN
            assert record.sent_s <= truths[key]["arrived_s"] - start_s + 1e-4
            assert record.end_s >= record.chunk_times_s[-1]
        ours = measure(list(records.values()))
        merged = [as_it_was(record, truths[key], start_s, merged=True) for key, record in records.items()]
        assert_near(ours, measure(merged), (*LATENCIES, *TOTALS))
        true = [as_it_was(record, truths[key], start_s) for key, record in records.items()]
        if [record.chunk_tokens for record in true] == [record.chunk_tokens for record in merged]:
            return


def endpoint_of(name):
    """One that the scenario is about."""
    return {"role_first": "chat", "reasoning": "chat", "incremental": "generate"}.get(name, "completions")


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_every_metric_is_the_truth(base_url, name, concurrency):
    check_truth(base_url, name, endpoint_of(name), concurrency)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", ["plain", "speculative"])
def test_at_64_streams(base_url, endpoint, name):
    check_truth(base_url, name, endpoint, 64)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_scenario_on_every_endpoint_at_64_streams(base_url, endpoint, name):
    check_truth(base_url, name, endpoint, 64)


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_times_that_are_not_on_the_wire_are_said_to_be(base_url, endpoint, name):
    records, held, _, _ = drive(base_url, name, endpoint, concurrency=4, count=4)
    assert held == 4
    assert all(record.error is None and record.output_tokens == OUTPUT_LEN for record in records.values())


@pytest.fixture(scope="module")
def failures(base_url, reader):
    """What came of two requests of every failing scenario on every endpoint, all at once: mostly they wait."""
    # longer than a busy machine takes for the answers that do come
    limits = paced_process.limits(first_token_timeout_s=8.0, idle_timeout_s=6.0)

    async def drive_all():
        cases = [(name, endpoint) for name in WRONG for endpoint in ENDPOINTS]
        drives = [
            paced_process.drive(
                f"{base_url}/{name}",
                paced_process.prompts(2, OUTPUT_LEN, endpoint, first=1000 * ENDPOINTS.index(endpoint)),
                endpoint=endpoint,
                concurrency=2,
                load=limits,
            )
            for name, endpoint in cases
        ]
        return dict(zip(cases, await asyncio.gather(*drives), strict=True))

    outcomes = asyncio.run(drive_all())
    return outcomes, {name: paced_process.truths(f"{base_url}/{name}") for name in WRONG}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_failure_in_its_class(failures, endpoint, name):
    if endpoint == "generate" and name == "no_usage":
        pytest.skip("/generate always counts")
    records, _, _ = failures[0][name, endpoint]
    assert [record.error for record in records.values()] == [SCENARIOS[name].expect] * 2
    assert measure(list(records.values()))["completed"] == 0
    for key, record in records.items():
        assert record.error_detail and "\n" not in record.error_detail
        assert record.end_s > record.sent_s
        if SCENARIOS[name].failure in ("hang", "pings"):
            assert failures[1][name][key]["hung_up"]  # the server does not go on for nobody
