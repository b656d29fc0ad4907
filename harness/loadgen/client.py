"""Streams completions from a server over sockets of its own and notes when every piece arrives.

While a response runs, its bytes are only taken off the socket, stamped and kept: events are cut, parsed and
counted when it has ended (`exchange.digest`).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from types import TracebackType
from typing import Self

from harness.loadgen.bodies import Endpoint
from harness.loadgen.connection import Connection, open_connection
from harness.loadgen.exchange import Exchange
from harness.loadgen.gate import Gate
from harness.loadgen.native import open_gatherer
from harness.loadgen.progress import Progress
from harness.loadgen.reading import one_line
from harness.loadgen.reception import Reception
from harness.loadgen.target import parse_target
from harness.schema import LoadConfig

_KEEP_ALIVE_S = 1.0  # shorter than any server's, which might close just as we send
# What follows [DONE] is only the response's end, without which its connection cannot be used again: worth a moment,
# until the server has let one pass.
_DONE_GRACE_S = 0.01


class Client:
    """Connections to one endpoint of one server, as an async context manager. Leaving it closes them all.

    Raises ValueError for a `base_url` that is none. tls: a context to use instead of the system's certificates.
    """

    def __init__(
        self,
        base_url: str,
        limits: LoadConfig,
        progress: Progress | None = None,
        *,
        endpoint: Endpoint = "completions",
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._target = parse_target(base_url, endpoint, api_key=api_key, tls=tls)
        self._address = self._target.host  # the one of its addresses that answered, once one has
        self._first = asyncio.Lock()  # held while that is not known
        self._limits = limits
        self._progress = progress or Progress(0)
        self._shorten = endpoint == "generate"
        self._grace_s = _DONE_GRACE_S
        self._gate = Gate()
        self._idle: deque[Connection] = deque()  # the last used one on the right
        self._open: set[Connection] = set()

    async def __aenter__(self) -> Self:
        self._gatherer = open_gatherer(plain=self._target.tls is None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in list(self._open):
            connection.close()
        self._gatherer.close()

    @property
    def reader(self) -> str:
        """What reads the sockets: "native", or "python" and why."""
        return self._gatherer.kind

    async def connect(self, count: int) -> None:
        """Open `count` connections ahead of the requests that are to use them within a second.

        One that cannot be opened is no matter here: its request will try again and say so.
        """

        async def one() -> Connection:
            return await self._connect(time.perf_counter())

        opened = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
        for connection in opened:
            if isinstance(connection, Connection):
                connection.idle_since_s = time.perf_counter()
                self._idle.append(connection)

    async def send(self, body: bytes, exchange: Exchange) -> None:
        """Carry one request out; every outcome is written into `exchange`, only cancellation is raised.

        One that comes some milliseconds before it is due (`exchange.scheduled_s`) is prepared, and sent when it is.
        """
        started_s = max(time.perf_counter(), exchange.scheduled_s)
        self._progress.running += 1
        try:
            again = await self._carry(body, exchange, started_s, self._take_idle())
            if again:  # a kept connection was closed under the request, before the server can have seen it
                await self._carry(body, exchange, started_s, None)
        except asyncio.CancelledError:
            exchange.problem = ("cancelled", "the load generator was stopped")
            raise
        finally:
            exchange.end_s = exchange.end_s or time.perf_counter()
            self._progress.running -= 1

    def _take_idle(self) -> Connection | None:
        oldest_s = time.perf_counter() - _KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.idle_since_s >= oldest_s:
                return connection
            self._drop(connection)
        return None

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)

    async def _connect(self, started_s: float) -> Connection:
        """A new connection, within the limits. Raises OSError (TimeoutError is one)."""
        target, limits = self._target, self._limits
        left_s = started_s + limits.total_timeout_s - time.perf_counter()
        async with asyncio.timeout(min(limits.connect_timeout_s, left_s)):
            if self._address != target.host:
                connection = await self._open_to(self._address)
            else:
                async with self._first:
                    connection = await self._open_to(self._address)
                    self._address = connection.peer
        self._open.add(connection)
        return connection

    async def _open_to(self, address: str) -> Connection:
        target = self._target
        return await open_connection(address, target.port, target.tls, target.host, self._gatherer)

    async def _carry(self, body: bytes, exchange: Exchange, started_s: float, kept: Connection | None) -> bool:
        """One try; whether it is worth another, on a new connection."""
        try:
            connection = kept or await self._connect(started_s)
        except TimeoutError:
            limit = self._limits.connect_timeout_s
            exchange.problem = ("connect", f"no connection within {limit:g} s (load.connect_timeout_s)")
            return False
        except OSError as error:  # a name that is not known, a refusal, a certificate
            exchange.problem = ("connect", one_line(error))
            return False
        request = self._target.head(len(body)) + body
        reception = Reception(
            connection,
            exchange,
            self._limits,
            self._progress,
            self._gatherer,
            started_s,
            shorten=self._shorten,
            grace_s=self._grace_s,
        )
        try:
            await self._gate.until(exchange.scheduled_s)
            if not connection.closed:
                await connection.request(request, reception.response, reception.sent)
        except asyncio.CancelledError:
            connection.look()  # what has come by then is kept
            self._drop(connection)
            raise
        finally:
            reception.end()
        if (kept or exchange.sent_s is None) and connection.broken and not reception.response.started:
            self._drop(connection)
            return True
        reception.conclude()
        if reception.done_s is not None and not reception.response.complete and not connection.broken:
            self._grace_s = 0.0
        if connection.closed:
            self._drop(connection)
        else:
            self._idle.append(connection)
        return False
