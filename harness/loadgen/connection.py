"""One connection to a server: a socket, and what comes over it, each piece with its time of arrival."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable

import httptools

from harness.loadgen.gather import Gatherer
from harness.loadgen.response import USUAL_END, Response
from harness.loadgen.stamps import ANCILLARY_BYTES, Moment, arrivals_s, ask_for_stamps
from harness.loadgen.tls import Tls

_MOST_LYING = 128  # pieces, and up to twice as many: handling them at once costs each a fraction of one at a time


class Connection:
    """Carries one request at a time. `await open_connection(...)` makes one; `close()` ends it at any time."""

    def __init__(self, sock: socket.socket, tls: Tls | None, peer: str, gatherer: Gatherer) -> None:
        self._sock, self._tls, self._gatherer = sock, tls, gatherer
        self._receive, self._room = sock.recvmsg_into, (gatherer.room,)
        self._most_lying = _MOST_LYING + sock.fileno() % _MOST_LYING  # streams in step must not all settle at once
        self.peer = peer  # the server's address
        self._loop = asyncio.get_running_loop()
        self._response: Response | None = None
        self._ended: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None  # what the socket did not take at once
        self._floor_s = 0.0  # nothing arrives before this
        # Read, and to be taken in when there is a reason:
        self._lying: list[bytes] = []
        self._moments: list[Moment] = []  # of the reads
        self._stamps: list[bytes] = []  # the kernel's, of the same
        self.closed = False
        self.broken: str | None = None  # how it broke
        self.malformed: str | None = None  # what was not HTTP
        self.idle_since_s = time.perf_counter()
        gatherer.add(sock, self)

    async def request(self, head: bytes, body: bytes, response: Response, on_sent: Callable[[float], None]) -> None:
        """Send head and body and fill `response`; returns when the response or the connection ended, or at `finish`.

        on_sent gets the time at which the first byte is handed to the socket.
        """
        self._response, self._ended = response, self._loop.create_future()
        data = head + body
        if self._tls:
            data = self._tls.encrypt(data)
        self._floor_s = time.perf_counter()
        on_sent(self._floor_s)
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
        self.read(Moment())
        self._settle()

    def read(self, moment: Moment) -> None:
        """Read what has arrived, as far as there is room."""
        if self.closed:
            return
        try:
            size, ancillary, _, _ = self._receive(self._room, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._settle()
            self._break(f"the connection broke: {error}")
            return
        data = bytes(self._room[0][:size])
        response = self._response
        if response and response.can_wait and ancillary and data.endswith(USUAL_END):
            self._lying.append(data)
            self._moments.append(moment)
            self._stamps.append(ancillary[0][2])
            if len(self._lying) >= self._most_lying:
                self._settle()
        elif data and response:
            self._settle()
            self._floor_s = moment.arrival_s(ancillary, self._floor_s)
            self._take(response, self._floor_s, data)
        else:  # nobody waits for these bytes: the server ends or misuses the connection
            self._settle()
            self._end()

    def _settle(self) -> None:
        """Take in what was left lying."""
        if not self._lying:
            return
        reads, moments, stamps = self._lying, self._moments, self._stamps
        self._lying, self._moments, self._stamps = [], [], []
        response = self._response
        if not response:
            return
        times_s = arrivals_s(moments, stamps, self._floor_s)
        self._floor_s = times_s[-1]
        self._take_many(response, times_s, reads)

    def _take_many(self, response: Response, times_s: list[float], reads: list[bytes]) -> None:
        """Take them in at once where all are usual, else those that are and the others one by one."""
        if self.closed or response.complete or response.take_usual(times_s, reads):
            return
        half = len(reads) // 2
        if half:
            self._take_many(response, times_s[:half], reads[:half])
            self._take_many(response, times_s[half:], reads[half:])
        else:
            self._take(response, times_s[0], reads[0])

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
            self._gatherer.remove(self._sock)
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
