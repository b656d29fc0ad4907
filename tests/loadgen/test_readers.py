"""What reads the sockets, compiled or not: whatever the network makes of a response, the same is read."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import time
from bisect import bisect_left
from socket import SO_LINGER, SOL_SOCKET

import paced_process
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.loadgen import native
from harness.loadgen.alike import USUAL_END, by_event
from harness.loadgen.bodies import request_body
from harness.loadgen.client import Client
from harness.loadgen.exchange import Exchange, digest
from harness.loadgen.gate import Gate
from harness.loadgen.paced.child import paced_server
from workloads.prompt import make_prompt

pytestmark = pytest.mark.usefixtures("reader")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKENS = 40


def chunk(payload):
    event = b"data: %b\n\n" % (payload if isinstance(payload, bytes) else json.dumps(payload).encode())
    return b"%x\r\n%b\r\n" % (len(event), event)


def token(number, finish=None):
    choice = {"index": 0, "text": f" w{number}", "finish_reason": finish}
    return {"choices": [choice], "usage": {"prompt_tokens": 4, "completion_tokens": number + 1}}


def response(tokens=TOKENS):
    events = [chunk(token(n, "length" if n == tokens - 1 else None)) for n in range(tokens)]
    return HEAD + b"".join([*events, chunk(b"[DONE]"), b"0\r\n\r\n"])


async def ask(server_writes, requests=1, limits=None, pause_s=0.0):
    """Records of requests, one after the other, to a server that handles a connection's requests by `server_writes`."""

    async def handle(reader, writer):
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await server_writes(writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()  # the client, or the test, has ended

    body = request_body(make_prompt([1] * 4, TOKENS), model="m", temperature=0.0, ignore_eos=True)
    records = []
    async with await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Client(url, limits or paced_process.limits()) as client:
            for number in range(requests):
                await asyncio.sleep(pause_s if number else 0)
                exchange = Exchange(
                    request_id=str(number),
                    worker=0,
                    prompt=make_prompt([1] * 4, TOKENS),
                    scheduled_s=time.perf_counter(),
                )
                await client.send(body, exchange)
                records.append((await digest(exchange, exact=True, start_s=exchange.scheduled_s))[0])
    return records


def assert_whole(record):
    assert record.error is None, record.error_detail
    assert record.output_text == "".join(f" w{n}" for n in range(TOKENS))
    assert sum(record.chunk_tokens) == record.output_tokens == TOKENS
    assert record.chunk_times_s == sorted(record.chunk_times_s)
    assert record.sent_s <= record.chunk_times_s[0] <= record.chunk_times_s[-1] <= record.end_s


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, len(response()) - 1), max_size=30))
def test_a_response_cut_anywhere(cuts):
    edges = [0, *sorted(cuts), len(response())]

    async def write(writer):
        for start, end in itertools.pairwise(edges):
            writer.write(response()[start:end])
            await writer.drain()
            await asyncio.sleep(0.0005)  # mostly a read of its own

    for record in asyncio.run(ask(write, requests=2)):
        assert_whole(record)


def test_events_that_come_one_by_one_and_all_at_once():
    async def write(writer):
        for number, event in enumerate(response().split(USUAL_END)):
            writer.write(event if number == TOKENS + 1 else event + USUAL_END if number < TOKENS else event)
            if number % 8 < 5:
                await asyncio.sleep(0.002)

    for record in asyncio.run(ask(write, requests=3)):
        assert_whole(record)


def test_what_comes_after_the_end_is_nobodys():
    """Half a response of nobody's question: the connection is not used again, and the answers before it count."""
    connections = set()

    async def write(writer):
        connections.add(writer)
        writer.write(response())
        await asyncio.sleep(0.05)
        writer.write(HEAD[:30])

    for record in asyncio.run(ask(write, requests=3, pause_s=0.6)):
        assert_whole(record)
    assert len(connections) == 3


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after", [1, TOKENS // 2])
def test_a_connection_that_ends_early_keeps_what_came(reset, after):
    async def write(writer):
        for event in response().split(USUAL_END)[:after]:
            writer.write(event + USUAL_END)
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.6 if reset else 0.05)  # a reset takes with it what was not read
        if reset:
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort() if reset else writer.close()

    (record,) = asyncio.run(ask(write))
    assert record.error == "early_stop"
    assert record.error_detail.startswith("the connection broke: ")
    assert ("reset" in record.error_detail) == reset
    assert sum(record.chunk_tokens) == after


def test_a_silence_after_many_events_is_timed_from_the_last():
    """Events that lie unread by us have come all the same."""

    async def write(writer):
        for event in response().split(USUAL_END)[:30]:
            writer.write(event + USUAL_END)
            await asyncio.sleep(0.02)
        await asyncio.sleep(60)

    (record,) = asyncio.run(ask(write, limits=paced_process.limits(idle_timeout_s=1.5)))
    assert record.error == "timeout_idle"
    assert sum(record.chunk_tokens) == 30
    assert record.end_s - record.chunk_times_s[-1] >= 1.49


def test_a_stalled_interpreter_does_not_merge_what_comes(reader):
    if reader != "native":
        pytest.skip("the interpreter itself reads")

    async def drive(url):
        asked = paced_process.prompts(1, 30, "completions")
        running = asyncio.create_task(
            paced_process.drive(url, asked, endpoint="completions", concurrency=1, load=paced_process.limits())
        )
        await asyncio.sleep(0.2)
        time.sleep(0.4)
        return (await running)[0]["0"]

    with paced_server("plain", 50, 20) as url:
        for _ in range(4):  # a busy machine may stall the reader, too
            record = asyncio.run(drive(url))
            assert record.error is None
            if len(record.chunk_tokens) >= 20:  # 11 where all of the stall are one
                return
    pytest.fail(f"30 tokens were read as {len(record.chunk_tokens)}")


@given(sizes=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6))
def test_reads_cut_at_events(sizes):
    reads = [b"".join(b'9\r\ndata: {"%b' % (b"x" * size) + USUAL_END for size in read) for read in sizes]
    ends = list(itertools.accumulate(map(len, reads)))
    times_s, wire, cuts = by_event([float(n) for n in range(len(reads))], b"".join(reads), ends)
    assert len(times_s) == len(cuts) == sum(map(len, sizes))
    assert all(wire[:cut].endswith(USUAL_END) for cut in cuts)
    assert times_s == [float(bisect_left(ends, cut)) for cut in cuts]


def test_the_gate_lets_none_go_early_and_all_at_once():
    async def go():
        gate, went = Gate(), []

        async def wait(name, at_s):
            await gate.until(at_s)
            went.append((name, time.perf_counter() - at_s))

        now_s = time.perf_counter()
        waits = [wait(n, now_s + 0.8) for n in range(50)] + [wait(n, now_s + 0.4) for n in range(50, 60)]
        await asyncio.gather(*waits, wait(60, now_s))
        return went

    went = asyncio.run(go())
    assert [name for name, _ in went] == [60, *range(50, 60), *range(50)]
    assert min(late_s for _, late_s in went) >= 0


def test_a_request_is_not_sent_before_it_is_due_nor_kept_when_given_up():
    async def hold():
        exchange = Exchange(
            request_id="0", worker=0, prompt=make_prompt([1], 4), scheduled_s=time.perf_counter() + 30.0
        )
        with paced_server("plain", 5, 5) as url:
            async with Client(url, paced_process.limits()) as client:
                task = asyncio.create_task(client.send(b"{}", exchange))
                await asyncio.sleep(0.1)
                task.cancel()
                await asyncio.wait([task])
            return exchange, paced_process.truths(url)

    exchange, truths = asyncio.run(hold())
    assert exchange.sent_s is None and truths == {}
    assert exchange.problem[0] == "cancelled"


def test_it_says_what_reads(reader):
    assert native.reader_here().startswith(reader)
    if reader == "python":
        assert "no-such-compiler is not on PATH" in native.reader_here()
