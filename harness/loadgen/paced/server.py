"""The paced server: one thread, one epoll, precomputed moves; keeps the time of everything it did.

It costs little beside the client under test, and its truth comes from the same clock (`time.perf_counter()` is
the machine's on Linux): requests are stamped by the kernel on arrival, tokens just before they are written.
"""

from __future__ import annotations

import heapq
import json
import selectors
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import httptools

from harness.loadgen.bodies import PATHS, Endpoint
from harness.loadgen.paced.scenarios import Scenario
from harness.loadgen.paced.script import Move, Script, read_ask
from harness.loadgen.stamps import ANCILLARY_BYTES, arrival_s, ask_for_stamps

_READ = 1 << 16
_ENDPOINTS: dict[str, Endpoint] = {path: endpoint for endpoint, path in PATHS.items()}


@dataclass(slots=True)
class Truth:
    """What one request really was. Times are `time.perf_counter()` seconds."""

    key: str  # its first token id, or the beginning of its text
    arrived_s: float  # its last byte
    times_s: list[float] = field(default_factory=list)  # when tokens went out
    tokens: list[int] = field(default_factory=list)  # how many did
    hung_up: bool = False  # by the client, before the end


class Peer:
    """One connection of a client; the HTTP parser calls it."""

    def __init__(self, server: PacedServer, sock: socket.socket) -> None:
        self.server, self.sock = server, sock
        self.unsent = b""
        self.closed = False
        self.moves: Iterator[Move] | None = None
        self.truth: Truth | None = None
        self.scenario = Scenario()
        self.begun = False  # the response's head is out
        self._floor_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", []  # type: tuple[bytes, list[bytes]]

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_headers_complete(self) -> None:
        name, path = self.server.route(self._url.decode())
        if path in _ENDPOINTS and self.server.scenarios[name].refuse_body:
            self.send(_plain(413, {"error": {"message": "too long"}}))
            self.close()

    def on_message_complete(self) -> None:
        if not self.closed:
            self.server.answer(self, self._url.decode(), b"".join(self._body), self._floor_s)
        self._url, self._body = b"", []

    def readable(self) -> None:
        try:
            data, ancillary, _, _ = self.sock.recvmsg(_READ, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if self.truth and self.moves is not None:
                self.truth.hung_up = True
            self.close()
            return
        self._floor_s = arrival_s(ancillary, self._floor_s)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def writable(self) -> None:
        data, self.unsent = self.unsent, b""
        self.server.watch(self, selectors.EVENT_READ)
        self.send(data)

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        if self.unsent:
            self.unsent += data
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            if self.truth:
                self.truth.hung_up = True
            self.close()
            return
        if sent < len(data):
            self.unsent = data[sent:]
            self.server.watch(self, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def close(self, reset: bool = False) -> None:
        if self.closed:
            return
        self.closed = True
        self.moves = None
        self.server.forget(self)
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class PacedServer:
    """Serves scenario NAME under /NAME/v1/... and /NAME/generate, and scenario `default` without a prefix.

    GET /NAME/truth gives what was served under it since the last time, as a list of `Truth`.
    """

    def __init__(self, scenarios: dict[str, Scenario], default: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self.scenarios, self._default = scenarios, default
        self._truths: defaultdict[str, list[Truth]] = defaultdict(list)
        self._due: list[tuple[float, int, Peer, Move]] = []
        self._count = 0
        self._selector = selectors.EpollSelector()
        self._listener = socket.create_server((host, port), backlog=4096)
        self._listener.setblocking(False)
        ask_for_stamps(self._listener)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        """Serve for ever."""
        while True:
            wait_s = max(self._due[0][0] - time.perf_counter(), 0.0) if self._due else None
            for key, events in self._selector.select(wait_s):
                if key.data is None:
                    self._accept()
                elif events & selectors.EVENT_READ:
                    key.data.readable()
                if key.data and events & selectors.EVENT_WRITE and not key.data.closed:
                    key.data.writable()
            now_s = time.perf_counter()
            while self._due and self._due[0][0] <= now_s:
                _, _, peer, move = heapq.heappop(self._due)
                if not peer.closed:
                    self._do(peer, move)

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ, Peer(self, sock))

    def watch(self, peer: Peer, events: int) -> None:
        self._selector.modify(peer.sock, events, peer)

    def forget(self, peer: Peer) -> None:
        self._selector.unregister(peer.sock)

    def route(self, url: str) -> tuple[str, str]:
        """Scenario name and the path below it."""
        path = url.partition("?")[0]
        first, _, rest = path.removeprefix("/").partition("/")
        return (first, "/" + rest) if first in self.scenarios else (self._default, path)

    def answer(self, peer: Peer, url: str, body: bytes, arrived_s: float) -> None:
        name, path = self.route(url)
        if path == "/truth":
            peer.send(_plain(200, [asdict(truth) for truth in self._truths.pop(name, [])]))
        elif path in _ENDPOINTS:
            self._serve(peer, name, _ENDPOINTS[path], body, arrived_s)
        else:
            peer.send(_plain(200, _about(path)))

    def _serve(self, peer: Peer, name: str, endpoint: Endpoint, body: bytes, arrived_s: float) -> None:
        scenario = self.scenarios[name]
        try:
            ask = read_ask(endpoint, body)
        except (KeyError, TypeError, ValueError) as error:
            peer.send(_plain(400, {"error": {"message": f"a request of another shape: {error!r}"}}))
            return
        truth = Truth(ask.key, arrived_s)
        self._truths[name].append(truth)
        if scenario.status != 200:
            refusal = {"error": {"message": "the server says no"}}
            peer.send(_plain(scenario.status, refusal, scenario.location))
            return
        if scenario.answer is not None:
            peer.send(_plain(200, scenario.answer))
            return
        peer.truth, peer.scenario, peer.begun = truth, scenario, False
        peer.moves = Script(scenario, ask).moves()
        if scenario.headers_at_once:
            self._begin(peer)
        self._next(peer)

    def _begin(self, peer: Peer) -> None:
        peer.begun = True
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" if peer.scenario.interim else b""
        framing = b"Connection: close" if peer.scenario.framing == "close" else b"Transfer-Encoding: chunked"
        peer.send(interim + b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n\r\n")

    def _next(self, peer: Peer) -> None:
        assert peer.moves is not None and peer.truth is not None
        move = next(peer.moves, None)
        if move is None:
            peer.moves = None
            if peer.scenario.framing != "close":
                peer.send(b"0\r\n\r\n")
            if peer.scenario.framing == "close" or peer.scenario.hang_up:
                peer.close()
            return
        self._count += 1
        heapq.heappush(self._due, (peer.truth.arrived_s + move.at_s, self._count, peer, move))

    def _do(self, peer: Peer, move: Move) -> None:
        if not peer.begun:
            self._begin(peer)
        truth = peer.truth
        assert truth is not None
        if move.tokens:
            truth.times_s.append(time.perf_counter())
            truth.tokens.append(move.tokens)
        if move.data:
            chunked = peer.scenario.framing != "close"
            peer.send(b"%x\r\n%b\r\n" % (len(move.data), move.data) if chunked else move.data)
        if move.end == "hang":
            return
        if move.end:
            peer.close(reset=move.end == "reset")
        if not peer.closed:
            self._next(peer)


def _plain(status: int, payload: Any, location: str = "") -> bytes:
    body = json.dumps(payload).encode()
    extra = f"Location: {location}\r\n" if location else ""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _about(path: str) -> dict[str, Any]:
    """What clients ask before they begin."""
    if path.endswith("/models"):
        return {"object": "list", "data": [{"id": "paced", "object": "model", "created": 0, "owned_by": "paced"}]}
    return {"status": "ok"}
