"""What `dry_run` says of engine=sglang: each command line, the memory it will take, and about how long it will run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.experiment import Cell, Point
from harness.instances.base import Place
from harness.instances.sglang_command import launch
from harness.instances.sglang_limits import on_gpu, pool_bytes
from harness.model_sizes import device_weights
from harness.schema import Config, EngineKind, OffloadSystem
from harness.simulated_rules import simulated_twin
from harness.simulation.load import closed_loop
from harness.simulation.pools import record_bytes_per_token, state_bytes_per_token
from harness.units import show_bytes

DEFAULT_PORT = 30000  # SGLang's; a run takes any free one
MEETING_POINT = "HOST:PORT"  # of the first node, found out when it starts


def launch_notes(cells: Sequence[Cell], labels: Sequence[str]) -> Iterator[str]:
    """Lines for cells of engine=sglang that can run; nothing for others."""
    total, known = 0.0, True
    for cell, label in zip(cells, labels, strict=True):
        if cell.config.engine.kind is not EngineKind.sglang or cell.infeasible:
            continue
        yield ""
        yield f"{label}:"
        yield from (f"  {line}" for line in commands(cell.config))
        yield f"  {memory(cell.config)}"
        seconds = seconds_of(cell.config, cell.points)
        if isinstance(seconds, str):
            known = False
            yield f"  time not estimated: {seconds}"
        else:
            total += seconds
            yield f"  about {_duration(seconds)} of load at simulated speed, beside the start"
    if total and known:
        yield ""
        yield f"all of it: about {_duration(total)} of load at simulated speed, one cell after the other"


def commands(config: Config) -> list[str]:
    """One a node, as one would type them."""
    python = config.engine.python or "python"
    nodes = config.num_nodes
    places = [Place(rank, nodes, MEETING_POINT if nodes > 1 else None) for rank in range(nodes)]
    port = config.engine.port or DEFAULT_PORT
    return [launch(config, place, port).as_shell(python) for place in places]


def memory(config: Config) -> str:
    """Weights and pools of one device, and the host pools against the nodes' memory. For DeepSeek-V4 by this project's
    BF16 records: SGLang's are FP8, and smaller."""
    tokens, device, host = pool_bytes(config)
    records, state = record_bytes_per_token(config), state_bytes_per_token(config)
    reserved = tokens * (config.engine.host_to_device_ratio or 1.0 if config.offload.system.offloads else 1.0)
    said = (
        f"on each device {show_bytes(int(device_weights(config)))} of weights and {show_bytes(device)} for KV: "
        f"{tokens:,} tokens of {show_bytes(int(tokens * records))}"
    )
    if state:
        said += f", selection state of {reserved:,.0f} tokens {show_bytes(int(reserved * state))}"
    if config.offload.system is not OffloadSystem.full_kv:
        has = config.platform.host_memory
        room = f" of {show_bytes(int(has) * config.num_nodes)}" if has is not None else ""
        said += f"; host pools {show_bytes(host)}{room} of DRAM"
    return said


def seconds_of(config: Config, points: Sequence[Point]) -> float | str:
    """How long the points take on the simulated platform, or why that is not known."""
    if not on_gpu(config):
        return f"platform={config.platform.name} is not simulated"
    twin = simulated_twin(config)
    if isinstance(twin, str):
        return twin
    try:
        runs = [closed_loop(twin, point.concurrency, point.num_requests) for point in points]
    except ValueError as error:
        return str(error)
    return sum(max(request.end_s or 0.0 for request in run.requests) for run in runs)


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"
