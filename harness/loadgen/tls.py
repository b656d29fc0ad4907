"""TLS over a socket that somebody else reads and writes: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import socket
import ssl

_PIECE = 1 << 16  # bytes asked of the decrypter at a time


class Tls:
    """One connection's TLS. `end` becomes true when the other side closed it in order."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.end = False

    async def handshake(self, sock: socket.socket) -> None:
        """Agree on keys over `sock` (non-blocking, connected). Raises OSError (ssl.SSLError is one)."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            if reply := self.pending():
                await loop.sock_sendall(sock, reply)
            if done:
                return
            data = await loop.sock_recv(sock, _PIECE)
            if not data:
                raise ConnectionError("the server closed the connection during the TLS handshake")
            self._incoming.write(data)

    def encrypt(self, data: bytes) -> bytes:
        """What to put on the wire for `data`."""
        self._tls.write(data)
        return self.pending()

    def decrypt(self, data: bytes) -> bytes:
        """The plain bytes that `data` completes. Raises ssl.SSLError."""
        self._incoming.write(data)
        plain = []
        try:
            while piece := self._tls.read(_PIECE):
                plain.append(piece)
            self.end = True
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still to come
        except ssl.SSLZeroReturnError:
            self.end = True
        return b"".join(plain)

    def pending(self) -> bytes:
        """What TLS itself has to say (an answer to a key update)."""
        return self._outgoing.read()
