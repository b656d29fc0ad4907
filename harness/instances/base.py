"""The protocol of a serving instance: something with a URL that a load generator can drive.

An instance is one process on each of `config.num_nodes` nodes. Each node has an `Instance` of its own, started with
its `Place`; they are started together, since none is ready before all are, and the URL is that of the first.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import psutil

from harness.records import ServerStats


class InstanceError(RuntimeError):
    """The server did not start, died, or answered what it should not. The message is one line.

    may_pass: whether the cause lies outside the cell (a port taken, a process killed), so that the same cell may well
    run when it is tried again; a sweep does that by itself (`harness.patience`).
    """

    def __init__(self, message: str, *, may_pass: bool = False):
        super().__init__(message)
        self.may_pass = may_pass


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of an instance one node holds."""

    node_rank: int = 0
    num_nodes: int = 1
    dist_init_addr: str | None = None
    """`host:port` on the first node where all meet (`meeting_point` there makes one); None with one node."""


ALONE = Place()
PORTS = 7  # SGLang's data-parallel attention listens on the six after the one where all meet
_TRIES = 100


class Instance(Protocol):
    """Runs where its server's process on one node runs (a Ray actor's process). Every method may raise InstanceError.

    On other nodes than the first there is `start`, `check`, `read_log`, `describe` and `stop` to call.
    """

    def start(self, place: Place = ALONE) -> str:
        """Bring the server up and return its base URL; nothing is left running when it raises.

        On other nodes than the first: start the process and return "", without waiting for the others.
        """

    def check(self) -> None:
        """Raise when the server's process on this node is no longer there."""

    def flush(self) -> None:
        """Empty caches and reset peaks between points."""

    def stats(self) -> ServerStats:
        """A reading of the server's counters."""

    def read_log(self, offset: int) -> tuple[str, int]:
        """What the server logged from byte `offset` on, and the offset after it; also before its start and after its
        end."""

    def describe(self) -> dict[str, Any]:
        """The node it runs on and the server's own description, for `env.json`."""

    def stop(self) -> None:
        """End the server and everything it started; may be called while another thread is in `start`. Idempotent."""


def meeting_point(node_address: str | None = None) -> str:
    """`host:port` on this node for the processes of an instance to meet at; it and the ports after it are free now.

    node_address: how the other nodes reach this one; None: the address this machine uses towards others.
    Raises OSError where there is no such run of ports.
    """
    host = node_address or own_address()
    for _ in range(_TRIES):
        with suppress(OSError, OverflowError), ExitStack() as bound:  # one of the ports is taken, or beyond the last
            port = _listen(host, 0, bound)
            for beside in range(1, PORTS):
                _listen(host, port + beside, bound)
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raise OSError(f"no {PORTS} free ports in a row on {host}")


def _listen(host: str, port: int, until: ExitStack) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = until.enter_context(socket.create_server((host, port), family=family))
    return int(server.getsockname()[1])


def own_address() -> str:
    """The address other machines reach this one at: of the first interface that is up and not loopback, else loopback.

    Nothing is sent.
    """
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family is socket.AF_INET and not address.address.startswith("127.")
    ]
    return found[0] if found else "127.0.0.1"
