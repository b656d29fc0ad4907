"""Shared by the engine's tests: one torch thread, and a running server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from engine_cells import cell
from running_server import SERVER, RunningServer, wait_for


@pytest.fixture(autouse=True, scope="package")
def one_torch_thread() -> Iterator[None]:
    """These models are far too small for two, which would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def running_server() -> Iterator[RunningServer]:
    running = RunningServer(cell(SERVER))
    yield running
    running.close()


@pytest.fixture
def server(running_server: RunningServer) -> Iterator[RunningServer]:
    """The module's server; after the test no request and no KV may be left, and it must still answer."""
    yield running_server
    engine = running_server.engine
    wait_for(lambda: running_server.call("POST", "/flush_cache")[0] == 200, "a clean flush")
    assert (engine.num_running, engine.num_waiting) == (0, 0)
    assert not running_server.server._queues
