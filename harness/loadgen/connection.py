"""One connection to a server: a socket, and what comes over it, each piece with its time of arrival."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable

import httptools

from harness.loadgen.alike import USUAL_END, by_event
from harness.loadgen.gather import Gatherer, Source
from harness.loadgen.response import Response
from harness.loadgen.stamps import ask_for_stamps
from harness.loadgen.tls import Tls


class Connection:
    """Carries one request at a time. `await open_connection(...)` makes one; `close()` ends it at any time."""

    def __init__(self, sock: socket.socket, tls: Tls | None, peer: str, gatherer: Gatherer) -> None:
        self._sock, self._tls = sock, tls
        self.peer = peer  # the server's address
        self._loop = asyncio.get_running_loop()
        self._response: Response | None = None
        self._ended: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None  # what the socket did not take at once
        self.closed = False
        self.broken: str | None = None  # how it broke
        self.malformed: str | None = None  # what was not HTTP
        self.idle_since_s = time.perf_counter()
        self._source: Source = gatherer.add(sock, self)

    async def request(self, data: bytes, response: Response, on_sent: Callable[[float], None]) -> None:
        """Send a whole request and fill `response`; returns when the response or the connection ended, or at `finish`.

        on_sent gets the time at which the first byte is handed to the socket.
        """
        self._response, self._ended = response, self._loop.create_future()
        if self._tls:
            data = self._tls.encrypt(data)
        sent_s = time.perf_counter()
        self._source.expect(sent_s)
        on_sent(sent_s)
        try:
            await self._send(data)
        except OSError as error:
            # A server may refuse a long body before it has read it: its answer counts, if there is one.
            self.look()
            if not self.closed and not response.in_body:
                self._break(f"sending failed: {error}")
        await self._ended
        self._response = None
        self.idle_since_s = time.perf_counter()
        if self._sending or not response.keeps_alive:
            self.close()

    async def _send(self, data: bytes) -> None:
        """Send all of it, or as much as there is time for before the response has ended."""
        assert self._ended is not None
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return
        self._sending = self._loop.create_task(self._loop.sock_sendall(self._sock, memoryview(data)[sent:]))
        await asyncio.wait((self._sending, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if self._sending.done():
            sending, self._sending = self._sending, None
            sending.result()

    def finish(self) -> None:
        """Make `request` return now."""
        if self._ended and not self._ended.done():
            self._ended.set_result(None)

    def look(self) -> None:
        """Take in all that is here, for whoever suspects that it is late."""
        if not self.closed:
            self._source.look()

    def arrived(self, times_s: list[float], wire: bytes, ends: list[int]) -> None:
        """Take reads in: wire has them all, each until one of `ends`, and they came at `times_s`."""
        response, usual = self._response, 0
        if response and response.can_wait:
            usual = len(ends)
            while usual and not wire.endswith(USUAL_END, 0, ends[usual - 1]):
                usual -= 1
            if usual:
                self._take_many(response, *by_event(times_s[:usual], wire[: ends[usual - 1]], ends[:usual]))
        for place in range(usual, len(ends)):
            if response is None or response.complete:  # nobody waits for it: the server misuses the connection
                self.ended(None)
            if response is None or self.closed:
                return
            self._take(response, times_s[place], wire[ends[place - 1] if place else 0 : ends[place]])
        if response and not self.closed:
            self._source.quiet(response.can_wait and not response.complete)

    def ended(self, error: OSError | None) -> None:
        """No more can come: in order, or the connection broke."""
        if self.closed:
            return
        if self._response and self._response.complete:
            self.close()
        elif error:
            self._break(f"the connection broke: {error}")
        else:
            self._end()

    def _take_many(self, response: Response, times_s: list[float], wire: bytes, ends: list[int]) -> None:
        """Take reads in at once where all are usual, else those that are and the others one by one."""
        if self.closed or response.complete or response.take_usual(times_s, wire, ends):
            return
        half = len(ends) // 2
        if half:
            cut = ends[half - 1]
            self._take_many(response, times_s[:half], wire[:cut], ends[:half])
            self._take_many(response, times_s[half:], wire[cut:], [end - cut for end in ends[half:]])
        else:
            self._take(response, times_s[0], wire)

    def _take(self, response: Response, time_s: float, data: bytes) -> None:
        try:
            if self._tls:
                data = self._tls.decrypt(data)
            if data:
                response.feed(time_s, data)
        except httptools.HttpParserError as error:
            self.malformed = f"not HTTP: {error}"
            self.close()
        except ssl.SSLError as error:
            self._break(f"the connection broke: {error}")
        if response.complete:
            self.finish()
        elif self._tls and self._tls.end:
            self._end()

    def _end(self) -> None:
        """The server closed the connection in order."""
        response = self._response
        if response and response.ends_with_connection:
            response.complete = True
            self.close()
        else:
            self._break("the connection broke: the server closed it before the response was complete")

    def _break(self, how: str) -> None:
        self.broken = how
        self.close()

    def close(self) -> None:
        """Close the socket; a request under way returns."""
        if not self.closed:
            self.closed = True
            self._source.stop()
            if self._sending and not self._sending.done():
                self._sending.add_done_callback(lambda _: self._sock.close())  # it looks after its socket to the end
                self._sending.cancel()
            else:
                self._sock.close()
        self.finish()


async def open_connection(
    host: str, port: int, tls_context: ssl.SSLContext | None, server_name: str, gatherer: Gatherer
) -> Connection:
    """Connect to the first of `host`'s addresses that answers; `gatherer` reads it. Raises OSError."""
    loop = asyncio.get_running_loop()
    refusal: OSError | None = None
    try:  # an address needs no thread to look it up
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(sock)
            await loop.sock_connect(sock, address)
            tls = Tls(tls_context, server_name) if tls_context else None
            if tls:
                await tls.handshake(sock)
            return Connection(sock, tls, str(address[0]), gatherer)
        except OSError as error:
            sock.close()
            refusal = refusal or error
        except BaseException:
            sock.close()
            raise
    raise refusal or OSError(f"{host} has no address")
