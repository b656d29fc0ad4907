"""Reading late: what the HTTP parser is spared is what it would have said, and when arrivals may lie."""

from __future__ import annotations

import asyncio
import socket
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paced_process import undisturbed

from harness.loadgen.alike import Copies
from harness.loadgen.polled import PolledGatherer
from harness.loadgen.response import Response
from harness.loadgen.stamps import ANCILLARY_BYTES, Moment, arrival_s, ask_for_stamps

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"text":"%b"}]}\n\n'
BODIES = [EVENT % b"x", EVENT % "\u00e9".encode(), b": ping\n\n", b"data: [DONE]\n\n", b'data: {"b":{}}\n\n' * 2]


@given(
    bodies=st.lists(st.sampled_from(BODIES), max_size=12),
    upper=st.booleans(),
    ended=st.booleans(),
    cuts=st.lists(st.integers(1, 400), max_size=6),
)
def test_a_spared_parser_says_the_same(bodies, upper, ended, cuts):
    size = b"%X\r\n" if upper else b"%x\r\n"
    chunks = [size % len(body) + body + b"\r\n" for body in bodies] + [b"0\r\n\r\n"] * ended
    wire = b"".join(chunks)
    ends = set(cuts)
    position = 0
    for chunk in chunks:  # mostly chunk by chunk, as servers write
        position += len(chunk)
        ends.add(position)
    edges = [0, *sorted(end for end in ends if end < len(wire)), len(wire)]
    got, spared, true = [], [], []
    copies = Copies()

    def take_events(times_s, read, ends):
        if copies.read(times_s, read, ends) is None:
            return False
        spared.append(read.partition(b"\r\n")[2][:-2])
        got.append(spared[-1])
        return True

    response = Response(lambda _, piece: got.append(piece), take_events)
    parsed = Response(lambda _, piece: true.append(piece), lambda *_: False)
    for reader in (response, parsed):
        reader.feed(0.0, HEAD)
    for start, end in pairwise(edges):
        if start == end:
            continue
        if not response.take_usual([1.0], wire[start:end], [end - start]):
            response.feed(1.0, wire[start:end])
        parsed.feed(1.0, wire[start:end])
        assert b"".join(got) == b"".join(true)
        assert response.complete == parsed.complete
    if not cuts:
        known = {EVENT % b"x", EVENT % "\u00e9".encode()}
        assert len(spared) == sum(body in known for body in bodies[1:]) or copies.hopeless


def test_a_stamp_is_when_it_came_however_late_it_is_read():
    """Linux begins to stamp a moment after the first socket of the machine asks for it; what comes before that is
    stamped when it is read."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        ask_for_stamps(sock)
        server, _ = listener.accept()

        def check():
            before_s = time.perf_counter()
            server.send(b"x")
            after_s = time.perf_counter()
            time.sleep(0.05)
            moment = Moment()
            _, ancillary, _, _ = sock.recvmsg(10, ANCILLARY_BYTES)
            for came_s in (moment.arrival_s(ancillary, 0.0), arrival_s(ancillary, 0.0)):
                assert before_s - 0.03 < came_s < after_s + 0.03  # loopback: while it was sent
            assert moment.arrival_s(ancillary, moment.now_s) >= moment.now_s  # never before what it follows

        with server:
            undisturbed(check)


@pytest.mark.parametrize(
    ("gap_s", "took_s", "since_s", "waits"),
    [
        (0.02, 10.0, 0.1, True),
        (0.002, 10.0, 0.1, False),  # a wait would bring two events together
        (0.02, 0.05, 0.1, False),  # requests are too short to start late
        (0.02, 10.0, 10.0, False),  # too few events
    ],
)
def test_when_arrivals_may_lie(gap_s, took_s, since_s, waits):
    async def decide():
        gatherer = PolledGatherer("a test")
        gatherer.gaps_s, gatherer.last_took_s = [gap_s] * 600, took_s
        gatherer._decided_s -= since_s
        assert gatherer.decide()
        gatherer.close()
        return gatherer.wait_s

    wait_s = asyncio.run(decide())
    assert (0 < wait_s < gap_s / 2) == waits
    assert waits or wait_s == 0
