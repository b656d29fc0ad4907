"""One connection to a server: a socket read as soon as the event loop can, each piece with its time of arrival."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable

import httptools

from harness.loadgen.stamps import ANCILLARY_BYTES, arrival_s, ask_for_stamps
from harness.loadgen.tls import Tls

_READ = 1 << 16  # bytes; asyncio's own 256 KiB cost more to allocate than to fill


class Response:
    """What one response brought, as the HTTP parser calls it; its body stays in pieces with their times."""

    def __init__(self, on_piece: Callable[[float, bytes], None]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.started = False  # the first byte is here
        self.in_body = False
        self.complete = False
        self.keeps_alive = False  # the connection can carry another request
        self.now_s = 0.0  # arrival of the bytes being parsed
        self._on_piece = on_piece
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, time_s: float, data: bytes) -> None:
        """Take bytes off the wire. Raises httptools.HttpParserError."""
        self.started = True
        self.now_s = time_s
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.in_body = self.status >= 200
        if not self.in_body:  # 100 Continue and the like announce another response
            self.headers.clear()

    def on_body(self, body: bytes) -> None:
        self._on_piece(self.now_s, body)

    def on_message_complete(self) -> None:
        self.complete = self.in_body
        self.keeps_alive = self.complete and self._parser.should_keep_alive()  # the parser forgets it after this

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the end of the connection ends the body."""
        framed = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()
        return self.in_body and not framed


class Connection:
    """Carries one request at a time. `await open_connection(...)` makes one; `close()` ends it at any time."""

    def __init__(self, sock: socket.socket, tls: Tls | None, peer: str) -> None:
        self._sock, self._tls = sock, tls
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
        self._loop.add_reader(sock, self.read)

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
            self.read()
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

    def read(self) -> None:
        """Take what has arrived. The event loop calls this; so may whoever suspects that it is late."""
        if self.closed:
            return
        try:
            data, ancillary, _, _ = self._sock.recvmsg(_READ, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._break(f"the connection broke: {error}")
            return
        response = self._response
        if not data or response is None:  # nobody waits for these bytes: the server ends or misuses the connection
            self._end()
            return
        time_s = self._floor_s = arrival_s(ancillary, self._floor_s)
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
            self._loop.remove_reader(self._sock)
            if self._sending and not self._sending.done():
                self._sending.add_done_callback(lambda _: self._sock.close())  # it looks after its socket to the end
                self._sending.cancel()
            else:
                self._sock.close()
        self.finish()


async def open_connection(host: str, port: int, tls_context: ssl.SSLContext | None, server_name: str) -> Connection:
    """Connect to the first of `host`'s addresses that answers. Raises OSError."""
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
            return Connection(sock, tls, str(address[0]))
        except OSError as error:
            sock.close()
            refusal = refusal or error
        except BaseException:
            sock.close()
            raise
    raise refusal or OSError(f"{host} has no address")
