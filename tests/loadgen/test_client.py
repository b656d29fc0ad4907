"""The client as a client: addresses, connections kept and lost, TLS, many streams, long prompts, long responses."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import threading

import paced_process
import pytest

from harness.loadgen import client
from harness.loadgen.bodies import request_body
from harness.loadgen.connection import open_connection
from harness.loadgen.cumulative import Shortener
from harness.loadgen.exchange import Exchange, digest
from harness.loadgen.paced.child import paced_server
from harness.loadgen.target import parse_target
from workloads.prompt import make_prompt, text_prompt

pytestmark = pytest.mark.usefixtures("reader")


@pytest.fixture(scope="module")
def base_url():
    with paced_server("plain", 20.0, 5.0) as url:
        yield url


def drive(base_url, count=4, concurrency=2, endpoint="completions", output_len=4, load=None, **options):
    asked = paced_process.prompts(count, output_len, endpoint)
    load = load or paced_process.limits()
    return paced_process.run(base_url, asked, endpoint=endpoint, concurrency=concurrency, load=load, **options)


def errors(records):
    return {record.error_detail for record in records.values() if record.error}


@pytest.mark.parametrize(
    ("base_url", "endpoint", "expected"),
    [
        ("http://h:8000", "completions", ("h", 8000, "/v1/completions", "h:8000")),
        ("http://h:8000/", "chat", ("h", 8000, "/v1/chat/completions", "h:8000")),
        ("http://h/v1", "completions", ("h", 80, "/v1/completions", "h")),
        ("https://h/a/b/v1/", "chat", ("h", 443, "/a/b/v1/chat/completions", "h")),
        ("http://[::1]:9/x", "generate", ("::1", 9, "/x/generate", "[::1]:9")),
    ],
)
def test_where_requests_go(base_url, endpoint, expected):
    target = parse_target(base_url, endpoint, api_key="k")
    assert (target.host, target.port, target.path, target.authority) == expected
    assert (target.tls is not None) == base_url.startswith("https")
    assert b"\r\nAuthorization: Bearer k\r\n" in target.head(3)


@pytest.mark.parametrize(
    "base_url",
    ["h:80", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://u:p@h", "http://h/?a=1", "http://h/a b"],
)
def test_what_is_no_base_url(base_url):
    with pytest.raises(ValueError, match="base_url is"):
        parse_target(base_url, "completions")


def test_a_key_that_would_break_the_head_is_refused():
    with pytest.raises(ValueError, match="API key"):
        parse_target("http://h", "completions", api_key="a\r\nX: y")


def test_bodies_say_the_prompt_as_the_endpoint_can():
    ids, text = make_prompt([1, 2], 8), text_prompt("hello", 8)
    options = {"model": "m", "temperature": 0.0, "ignore_eos": True}
    assert json.loads(request_body(ids, **options))["prompt"] == [1, 2]
    assert json.loads(request_body(text, **options))["prompt"] == "hello"
    chat = json.loads(request_body(text, endpoint="chat", **options))
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    native = json.loads(request_body(ids, endpoint="generate", **options))
    assert native["input_ids"] == [1, 2]
    assert native["sampling_params"] == {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    assert json.loads(request_body(text, endpoint="generate", **options))["text"] == "hello"
    with pytest.raises(ValueError, match="only token ids"):
        request_body(ids, endpoint="chat", **options)


def test_connections_closed_after_every_response_cost_no_request(base_url):
    records, _, _ = drive(f"{base_url}/hang_up", count=8)
    assert errors(records) == set()
    assert len(paced_process.truths(f"{base_url}/hang_up")) == 8  # none was sent twice


@pytest.mark.parametrize(("scenario", "connections"), [("plain", 2), ("crlf", 2), ("until_close", 8), ("http_500", 2)])
def test_connections_are_kept_where_the_server_allows(base_url, monkeypatch, scenario, connections):
    opened = []

    async def counting(*address):
        opened.append(address)
        return await open_connection(*address)

    monkeypatch.setattr(client, "open_connection", counting)
    drive(f"{base_url}/{scenario}", count=8)
    assert len(opened) == connections


def test_a_host_name_is_as_good_as_an_address(base_url):
    records, _, _ = drive(base_url.replace("127.0.0.1", "localhost") + "/plain")
    assert errors(records) == set()


def test_a_name_nobody_knows_is_a_connect_error():
    records, _, _ = drive("http://no-such-host.invalid")
    assert {record.error for record in records.values()} == {"connect"}


def test_a_server_that_does_not_accept():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:  # fill its queue
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        records, _, _ = drive(url, load=paced_process.limits(connect_timeout_s=0.2))
        for sock in waiting:
            sock.close()
    assert errors(records) == {"no connection within 0.2 s (load.connect_timeout_s)"}


def test_a_server_that_does_not_read():
    """A body that never fits into the socket's buffers must not outlive the time limit."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        asked = [text_prompt("x" * 20_000_000, 4)]
        load = paced_process.limits(first_token_timeout_s=0.3)
        records, _, _ = paced_process.run(url, asked, endpoint="completions", concurrency=1, load=load)
    assert [record.error for record in records.values()] == ["timeout_first_token"]


def test_1024_streams_of_one_process(base_url):
    paced_process.truths(f"{base_url}/plain")  # of earlier tests
    records, _, _ = drive(f"{base_url}/plain", count=1024, concurrency=1024)
    assert errors(records) == set()
    assert len(records) == len(paced_process.truths(f"{base_url}/plain")) == 1024


@pytest.mark.parametrize("endpoint", ["completions", "generate"])
def test_prompts_of_200k_tokens(base_url, endpoint):
    asked = [make_prompt([100_000 + number] + [7] * 199_999, 4) for number in range(4)]
    load = paced_process.limits()
    records, _, _ = paced_process.run(f"{base_url}/plain", asked, endpoint=endpoint, concurrency=4, load=load)
    assert errors(records) == set()
    assert {record.prompt_tokens for record in records.values()} == {200_000}


def test_a_long_cumulative_response_is_kept_short(base_url):
    """600 tokens of `/generate` are 1.3 MB on the wire, every event with all that came before."""
    with paced_server("plain", 5.0, 2.0) as url:
        records, _, _ = drive(f"{url}/plain", count=1, endpoint="generate", output_len=600)
    record = records["0"]
    assert record.error is None
    assert record.output_text == "".join(f" w{token}" for token in range(600))
    assert sum(record.chunk_tokens) == 600
    assert len(record.chunk_tokens) > 20  # 600 where no event is read together with another


def test_only_the_newest_of_cumulative_events_is_kept_whole():
    events = [
        b'data: {"text":"%b","output_ids":%b,"meta_info":{"completion_tokens":%d,"prompt_tokens":3}}\n\n'
        % (b" w" * n, json.dumps(list(range(n))).encode(), n)
        for n in range(1, 200)
    ]
    stream = b"".join(events) + b"data: [DONE]\n\n"
    for cut in (1_000, 50_000):
        shortener, times, pieces = Shortener(), [], []
        for number, start in enumerate(range(0, len(stream), cut)):
            shortener.add(float(number), stream[start : start + cut], times, pieces)
        shortener.close(1e3, times, pieces)
        assert len(times) == len(pieces)
        prompt = make_prompt([1, 2, 3], 199)
        exchange = Exchange(request_id="r", worker=0, prompt=prompt, scheduled_s=0.0, times_s=times, pieces=pieces)
        record, _ = asyncio.run(digest(exchange, exact=True, start_s=0.0))
        assert record.error is None
        assert record.output_text == " w" * 199
        assert record.output_tokens == sum(record.chunk_tokens) == 199
        if cut == 1_000:
            assert sum(map(len, pieces)) < len(stream) / 4


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for localhost."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate of this test")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += " -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return folder


@pytest.fixture
def tls_url(base_url, certificate):
    """A TLS front of the paced server, by Python's blocking sockets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    inner = ("127.0.0.1", int(base_url.rsplit(":", 1)[1]))

    def copy(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except (OSError, ValueError):
            pass
        for sock in (source, sink):
            sock.close()

    def front(listener):
        while True:
            try:
                outside = context.wrap_socket(listener.accept()[0], server_side=True)
            except ssl.SSLError:
                continue  # a client that does not trust us
            except OSError:
                return
            inside = socket.create_connection(inner)
            for pair in ((outside, inside), (inside, outside)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=front, args=(listener,), daemon=True).start()
        yield f"https://localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_https(tls_url, certificate):
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    records, _, _ = drive(f"{tls_url}/plain", count=4, tls=trusting)
    assert errors(records) == set()
    asked = [make_prompt([1] * 200_000, 4)]
    records, _, _ = paced_process.run(
        f"{tls_url}/plain", asked, endpoint="completions", concurrency=1, load=paced_process.limits(), tls=trusting
    )
    assert records["1"].prompt_tokens == 200_000


def test_an_untrusted_certificate_is_a_connect_error(tls_url):
    records, _, _ = drive(f"{tls_url}/plain", count=1)
    assert [record.error for record in records.values()] == ["connect"]
    assert "certificate" in next(iter(records.values())).error_detail
