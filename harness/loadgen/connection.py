"""One connection to a server: a socket, and what comes over it, each piece with its time of arrival."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import httptools

from harness.loadgen.alike import USUAL_END
from harness.loadgen.gather import Gatherer
from harness.loadgen.response import Response
from harness.loadgen.stamps import ANCILLARY_BYTES, Moment, arrivals_s, ask_for_stamps
from harness.loadgen.tls import Tls

_READ, _MORE = 1 << 12, 1 << 16  # bytes of one read: usually, and where there were as many
# Reads that are taken in at once, which costs each a fraction of one at a time: few at first, as it is from their
# times that the gatherer learns how long it may wait.
_FEW, _MANY = 16, 128


class Connection:
    """Carries one request at a time. `await open_connection(...)` makes one; `close()` ends it at any time."""

    def __init__(self, sock: socket.socket, tls: Tls | None, peer: str, gatherer: Gatherer) -> None:
        self._sock, self._tls, self._gatherer = sock, tls, gatherer
        self._receive = sock.recvmsg
        # Reads lie here until there is a reason to take them in: of each its bytes, the kernel's stamp, the moment.
        self._lying: list[Any] = []
        self._at_once = _FEW + sock.fileno() % _FEW  # streams in step must not all settle at once
        self.peer = peer  # the server's address
        self._loop = asyncio.get_running_loop()
        self._response: Response | None = None
        self._ended: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None  # what the socket did not take at once
        self._floor_s = 0.0  # nothing arrives before this
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

    def read(self, moment: Moment, most: int = _READ) -> None:
        """Read what has arrived."""
        if self.closed:
            return
        try:
            data, ancillary, _, _ = self._receive(most, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._settle()
            self._break(f"the connection broke: {error}")
            return
        response = self._response
        if response and response.can_wait and ancillary and data.endswith(USUAL_END):
            lying = self._lying
            lying += (data, ancillary[0][2], moment)
            if len(lying) >= 3 * self._at_once:
                self._settle()
        elif data and response:
            self._settle()
            self._floor_s = moment.arrival_s(ancillary, self._floor_s)
            self._take(response, self._floor_s, data)
            if len(data) == most == _READ:
                self.read(moment, _MORE)
        else:  # nobody waits for these bytes: the server ends or misuses the connection
            self._settle()
            self._end()

    def _settle(self) -> None:
        """Take in what was left lying."""
        lying = self._lying
        if not lying:
            return
        reads, stamps, moments = lying[::3], lying[1::3], lying[2::3]
        self._lying = []
        self._at_once = min(2 * self._at_once, _MANY + self._sock.fileno() % _FEW)
        response = self._response
        if not response:
            return
        times_s = arrivals_s(moments, stamps, self._floor_s)
        self._floor_s = times_s[-1]
        self._take_many(response, times_s, b"".join(reads), list(accumulate(map(len, reads))))

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
