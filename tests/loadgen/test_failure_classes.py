"""Every way a request can fail ends in its class, and the point's verdict says so."""

from __future__ import annotations

import asyncio
import socket
import time

import paced_process
import pytest

from harness.loadgen.bodies import request_body
from harness.loadgen.client import Client
from harness.loadgen.exchange import Exchange, digest
from harness.loadgen.paced.child import paced_server
from harness.loadgen.run import PointLoad, run_point
from harness.records import Status

pytestmark = pytest.mark.usefixtures("reader")


@pytest.mark.parametrize(
    ("scenario", "limits", "kind", "detail"),
    [
        ({"fail_at": 3, "failure": "error_event"}, {}, "stream_error", "out of memory"),
        ({"plain_json": {"error": {"message": "bad day"}}}, {}, "stream_error", "bad day"),
        ({"plain_json": {"choices": []}}, {}, "malformed", "not a server-sent event"),
        ({"status": 400}, {}, "http_4xx", "HTTP 400: the server says no"),
        ({"status": 500}, {}, "http_5xx", "HTTP 500: the server says no"),
        ({"fail_at": 0, "failure": "hang"}, {"first_token_timeout_s": 0.3}, "timeout_first_token", "0.3 s"),
        (
            {"fail_at": 0, "failure": "hang", "role_first": True},
            {"first_token_timeout_s": 0.3, "idle_timeout_s": 0.1},
            "timeout_first_token",
            "0.3 s",
        ),
        ({"fail_at": 3, "failure": "hang"}, {"idle_timeout_s": 0.3}, "timeout_idle", "load.idle_timeout_s"),
        ({"fail_at": 3, "failure": "hang"}, {"total_timeout_s": 0.4}, "timeout_total", "0.4 s"),
        ({"fail_at": 3, "failure": "close"}, {}, "early_stop", "connection broke"),
        ({"fail_at": 0, "failure": "close"}, {}, "early_stop", "connection broke"),
        ({"finish": False}, {}, "early_stop", "without [DONE]"),
        ({"fail_at": 3, "failure": "not_json"}, {}, "malformed", "not JSON"),
        ({"fail_at": 3, "failure": "not_sse"}, {}, "malformed", "Bad gateway"),
        ({"usage": "none"}, {}, "malformed", "no usage in the stream"),
    ],
)
def test_failures_in_their_class(paced, scenario, limits, kind, detail):
    result, server = paced.run(paced.Scenario(**scenario), requests=2, limits=limits)
    assert [r.error for r in result.requests] == [kind, kind]
    assert detail in result.requests[0].error_detail
    assert result.status is Status.FAILED
    assert result.reason.startswith(f"all 2 requests failed: {kind} x2")
    assert (result.measures["completed"], result.measures["failed"]) == (0, 2)
    assert result.measures["mean_ttft_ms"] is None
    assert server.running == 0


@pytest.mark.parametrize("extra", [-1, 1])
def test_wrong_length_makes_the_point_invalid(paced, extra):
    result, _ = paced.run(paced.Scenario(extra_tokens=extra), requests=2)
    assert {r.error for r in result.requests} == {"wrong_length"}
    assert result.status is Status.INVALID
    assert f"{8 + extra} tokens came, 8 were asked for" in result.reason


def test_short_answers_are_fine_when_eos_may_stop(paced):
    result, _ = paced.run(paced.Scenario(extra_tokens=-3), ignore_eos=False)
    assert result.status is Status.OK
    assert all(r.output_tokens == 5 for r in result.requests)


def test_connection_refused(paced):
    with socket.socket() as unused:  # bound and not listening: refuses
        unused.bind(("127.0.0.1", 0))
        load = PointLoad(
            base_url=f"http://127.0.0.1:{unused.getsockname()[1]}",
            model="m",
            prompts=paced.prompts(2),
            concurrency=2,
            load=paced.limits(),
        )
        result = asyncio.run(run_point(load))
        load.warmup = paced.prompts(3)[2:]
        warm = asyncio.run(run_point(load))
    assert {r.error for r in result.requests} == {"connect"}
    assert result.status is Status.FAILED
    assert (warm.status, warm.requests) == (Status.FAILED, [])
    assert warm.reason.startswith("warm-up: all 1 requests failed: connect x1")


def test_some_failures_make_the_point_invalid(paced, monkeypatch):
    class EveryOther(paced.Server):
        async def _handle(self, request):
            self.scenario.status = 503 if len(self.truths) == 1 else 200
            return await super()._handle(request)

    monkeypatch.setattr(paced, "Server", EveryOther)
    result, _ = paced.run(paced.Scenario(), concurrency=1)
    assert result.status is Status.INVALID
    assert result.reason == "1 of 4 requests failed: http_5xx x1 (HTTP 503: the server says no)"
    assert (result.measures["completed"], result.measures["failed"]) == (3, 1)


def test_a_cancelled_request_is_classified(paced):
    prompt = paced.prompts(1)[0]
    exchange = Exchange(request_id="r", worker=0, prompt=prompt, scheduled_s=time.perf_counter())
    body = request_body(prompt, model="m", temperature=0.0, ignore_eos=True)

    async def cancel():
        async with (
            paced.Server(paced.Scenario(fail_at=2, failure="hang")) as server,
            Client(server.base_url, paced.limits()) as client,
        ):
            task = asyncio.create_task(client.send(body, exchange))
            while not server.truths or server.truths[0].tokens < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # for the second to arrive
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return await digest(exchange, exact=True, start_s=exchange.scheduled_s)

    record, _ = asyncio.run(cancel())
    assert record.error == "cancelled"
    assert sum(record.chunk_tokens) == 2  # what had arrived is kept


@pytest.mark.parametrize(("answer", "kind"), [(b"", "early_stop"), (b"SSH-2.0 hello\r\n\r\n", "malformed")])
def test_servers_that_do_not_speak_http(paced, answer, kind):
    async def point():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            load = PointLoad(
                base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
                model="m",
                prompts=paced.prompts(1),
                concurrency=1,
                load=paced.limits(),
            )
            return await run_point(load)

    result = asyncio.run(point())
    assert [r.error for r in result.requests] == [kind]
    assert result.status is Status.FAILED


def test_done_ends_a_request_however_long_the_connection_stays_open():
    """`[DONE]` without the response's end: no worker waits a second for it, and no duration has it."""

    def check(url):
        asked = paced_process.prompts(12, 5, "completions")
        began_s = time.perf_counter()
        records, _, _ = paced_process.run(
            url, asked, endpoint="completions", concurrency=1, load=paced_process.limits()
        )
        took_s = time.perf_counter() - began_s
        assert [record.error for record in records.values()] == [None] * 12
        assert max(record.end_s - record.chunk_times_s[-1] for record in records.values()) < 0.2
        assert took_s < 6  # a second each was 12

    with paced_server("plain", 20, 5) as base_url:
        paced_process.undisturbed(lambda: check(f"{base_url}/done_and_hang"))
