"""What is asked of a server of ours before it is there, and while it dies."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

import pytest

from harness.instances.base import InstanceError
from harness.instances.own_server import OwnServer
from harness.instances.process import ServerProcess

# answers nobody any more, and is gone a while later: as one that is killed while it has much memory to give back
DIES_SLOWLY = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
listener.accept()[0].close()
listener.close()
time.sleep(3)
os.kill(os.getpid(), 9)
"""


class Server(OwnServer):
    def start(self, code: str) -> None:
        self._process = process = ServerProcess([sys.executable, "-c", textwrap.dedent(code)])
        process.wait_ready(lambda: process.read_log(0)[0].endswith("\n"), timeout_s=240)
        self._url = f"http://127.0.0.1:{int(process.read_log(0)[0])}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def test_a_log_is_empty_before_there_is_a_process(server: Server) -> None:
    """One node's part may fail while another's has not come so far: its log must still be had beside this one."""
    assert server.read_log(0) == ("", 0)
    server.stop()


def test_a_server_that_dies_slowly_is_told_from_one_that_does_not_answer(server: Server) -> None:
    server.start(DIES_SLOWLY)
    with pytest.raises(InstanceError, match="^the server ended with exit code -9") as told:
        server.flush()
    assert told.value.may_pass  # else the cell would not be tried again
