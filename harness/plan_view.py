"""What a run is about to do, for people: its cells, what their requests need, what fits, what is left to run.

Made for 80 columns: what all cells share is said once above the table, and a column has one unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from harness.engine.footprint import Footprint
from harness.engine.kv.sharing import prefetch_label
from harness.experiment import Cell, Point
from harness.identity import defines_cell
from harness.placement import ask_of
from harness.schema import LengthKind, LoadMode, OffloadSystem, to_plain
from harness.units import common_unit, show_bytes, show_in, show_rate, show_seconds

_NAMES = ("model.name", "selector.kind", "platform.name", "engine.kind", "workload.name")
_SAID = ("offload.system", "offload.cache_slots")  # in every label
_SHORT = {
    "selector.top_k": "k",
    "engine.device_kv_budget": "device",
    "engine.host_kv_budget": "host",
    "workload.input_len": "in",
    "workload.output_len": "out",
}
_MOST_NOTES = 5
_LEGEND = (
    "records, state, meta: device bytes of one request (KV, selection state, page tables and LRU order); "
    "host: its bytes in the host pool; at {most}: what {most} requests at once need"
)


def plan_table(cells: Sequence[Cell]) -> Group:
    """What all cells share, a row a cell, and why a cell cannot run."""
    labels = cell_labels(cells)
    most = max(point.concurrency for cell in cells for point in _points(cell))
    notes = [
        f"{label} cannot run: {cell.infeasible}" for label, cell in zip(labels, cells, strict=True) if cell.infeasible
    ]
    others = [f"{label}: {cell.note}" for label, cell in zip(labels, cells, strict=True) if cell.note]
    notes += others[:_MOST_NOTES] + [f"and {len(others) - _MOST_NOTES} more such cells"] * (len(others) > _MOST_NOTES)
    kind = cells[0].config.engine.kind
    if not kind.takes_requests or not kind.plans_memory:
        shared = _shared_elsewhere(cells) if kind.takes_requests else _shared_offline(cells)
        lines = (Text(line, style="dim") for line in _scheduling(cells))
        return Group(*map(Text, shared), _points_table(cells, labels), *lines, *map(Text, notes))
    return Group(
        *(Text(line) for line in _shared(cells) if line),
        _table(cells, labels, most),
        Text(_LEGEND.format(most=most), style="dim"),
        *(Text(line, style="dim") for line in _sent_to_host(cells)),
        *(Text(line, style="dim") for line in _scheduling(cells)),
        *map(Text, notes),
        *map(Text, _fallbacks(cells, labels)),
    )


def plan_totals(cells: Sequence[Cell]) -> str:
    """One line: what is left to do."""
    points = sum(len(cell.points) for cell in cells)
    done = sum(len(cell.done) for cell in cells)
    left = f"{points} points to run, {done} on disk already"
    if not cells[0].config.engine.kind.takes_requests:
        return left
    requests = sum(point.num_requests for cell in cells for point in cell.points if not cell.infeasible)
    return f"{left}, {requests:,} requests to send"


def cell_labels(cells: Sequence[Cell]) -> list[str]:
    """A short name for each cell: its system, B, and whatever else tells it from the others."""
    flat = [_flat(cell) for cell in cells]
    offloads = [cell.config.offload.system.offloads for cell in cells]
    sides = [[one for one, side in zip(flat, offloads, strict=True) if side is wanted] for wanted in (True, False)]
    # what differs only because full KV has no use for it is no name
    varying = [key for key in flat[0] if key not in _SAID and any(_varies(side, key) for side in sides if side)]
    # prefetch follows from the system unless one system has several
    pairs = {(one["offload.system"], one["offload.prefetch"]) for one in flat}
    if len(pairs) == len({system for system, _ in pairs}):
        varying = [key for key in varying if key != "offload.prefetch"]
    tails = [key.split(".")[-1] for key in varying]
    labels = []
    for cell, settings in zip(cells, flat, strict=True):
        parts = [cell.config.offload.system.value]
        if cell.config.offload.system not in (OffloadSystem.full_kv, OffloadSystem.fetch_all):
            parts.append(f"B={cell.config.offload.cache_slots}")
        for key, tail in zip(varying, tails, strict=True):
            short = _SHORT.get(key) or (tail if tails.count(tail) == 1 else key)
            if key in _NAMES:
                parts.append(str(settings[key]))
            elif settings[key] is not None and not _follows_name(flat, key):  # dense has no k
                parts.append(f"{short}={_shown(key, settings[key])}")
        labels.append(" ".join(parts))
    return labels


def _scheduling(cells: Sequence[Cell]) -> Iterator[str]:
    """What an instance takes on a cluster, in which order cells run, and within which time."""
    c = cells[0].config.cluster
    placed = [cell for cell in cells if cell.config.engine.kind.needs_cluster]
    asks = dict.fromkeys(str(ask_of(cell.config)) for cell in placed)
    if c.address is not None or any(ask_of(cell.config).nodes > 1 for cell in placed):
        yield f"an instance takes {' or '.join(asks)}" + ("; it owns its nodes" if c.exclusive else "")
    if len(cells) > 1:
        side_by_side = placed and not c.exclusive
        yield "cells run in this order" + (", side by side where they fit" if side_by_side else ", one after another")
    limits = (("a cell", c.cell_timeout_s), ("a point", c.point_timeout_s), ("this run", c.budget_s))
    if said := [f"{what} {show_seconds(seconds)}" for what, seconds in limits if seconds is not None]:
        yield f"at most: {', '.join(said)}"


def _fallbacks(cells: Sequence[Cell], labels: Sequence[str]) -> Iterator[str]:
    """What is asked to prefetch and cannot: it fetches misses when they are needed."""
    for cell, label in zip(cells, labels, strict=True):
        said = prefetch_label(cell.config)
        if cell.config.offload.system is OffloadSystem.hisparse_prefetch and said.startswith("none"):
            yield f"{label}: no prefetch: {said.removeprefix('none').strip(' ()')}"


def _table(cells: Sequence[Cell], labels: Sequence[str], most: int) -> Table:
    needs = [cell.request for cell in cells]
    device = [most * need.device + Footprint(cell.config).workspace for cell, need in zip(cells, needs, strict=True)]
    one = common_unit(max(max(need.device, need.host) for need in needs))
    together = common_unit(max(*device, *(most * need.host for need in needs)))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    longest_word = max(len(word) for label in labels for word in label.split())
    table.add_column("cell", vertical="bottom", overflow="fold", min_width=longest_word)
    for heading in (
        *(f"{part}\n{one}" for part in ("records", "state", "meta", "host")),
        "fit at\nonce",
        *(f"at {most}:\n{part}\n{together}" for part in ("device", "host")),
        "to\nrun",
    ):
        table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    for label, cell, need, bytes_together in zip(labels, cells, needs, device, strict=True):
        todo, every = len(cell.points), len(_points(cell))
        table.add_row(
            label,
            *(show_in(n, one) for n in (need.records, need.selection_state, need.metadata, need.host)),
            "none" if cell.infeasible else str(cell.capacity),
            show_in(bytes_together, together),
            show_in(most * need.host, together),
            str(every) if todo == every else f"{todo} of {every}",
        )
    return table


def _points_table(cells: Sequence[Cell], labels: Sequence[str]) -> Table:
    """Cells that serve nothing hold no requests: what is left to run is all there is to say."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cell", overflow="fold")
    table.add_column("points to run", justify="right", no_wrap=True)
    for label, cell in zip(labels, cells, strict=True):
        todo, every = len(cell.points), len(_points(cell))
        table.add_row(label, str(every) if todo == every else f"{todo} of {every}")
    return table


def _shared_offline(cells: Sequence[Cell]) -> Iterator[str]:
    c = cells[0].config
    kinds = ", ".join(dict.fromkeys(cell.config.engine.kind.value for cell in cells))
    yield f"{c.name}: {len(cells)} cell{'s' * (len(cells) > 1)} measured in place on {c.platform.name} ({kinds})"
    load = c.load
    yield f"batch {', '.join(map(str, load.concurrencies))}" + (f"; {load.repeats} repeats" if load.repeats > 1 else "")


def _shared_elsewhere(cells: Sequence[Cell]) -> Iterator[str]:
    c = cells[0].config
    yield f"{c.name}: {len(cells)} cell{'s' * (len(cells) > 1)} of a server that runs already, {c.engine.url}"
    yield f"{c.workload.name}: {c.workload.input_len:,} tokens in, {c.workload.output_len:,} out"
    yield _load(cells)


def _sent_to_host(cells: Sequence[Cell]) -> Iterator[str]:
    """What each request sends to the host pool, where that is one number for all offload systems."""
    sent = set()
    for cell in cells:
        if cell.config.offload.system.offloads:
            work = cell.config.workload
            sent.add(Footprint(cell.config).sent_to_host(work.input_len, work.output_len))
    if len(sent) == 1:
        staged, written = map(show_bytes, sent.pop())
        yield f"to the host pool, each request: {staged} staged in prefill, {written} written through in decode"


def _shared(cells: Sequence[Cell]) -> Iterator[str]:
    """The lines above the table: whatever is the same for all cells."""
    c, flat = cells[0].config, [_flat(cell) for cell in cells]
    k = "" if c.selector.top_k is None else f" k={c.selector.top_k}"
    about = "" if c.workload.lengths is LengthKind.fixed else "about "
    about = "up to " if c.workload.max_input_len else about
    lengths = f"{about}{c.workload.input_len:,} tokens in, {c.workload.output_len:,} out"

    def same(*said: tuple[str, str]) -> str:
        return ", ".join(text for keys, text in said if not any(_varies(flat, key) for key in keys.split()))

    who = same(
        ("model.name", c.model.name),
        ("selector.kind selector.top_k", f"{c.selector.kind.value}{k}"),
        ("engine.kind platform.name", f"{c.engine.kind.value} engine on {c.platform.name}"),
        *(
            [("platform.link.bandwidth", f"host link {c.platform.link.label}")]
            if c.platform.link.label.startswith("emul")
            else []
        ),
    )
    yield f"{c.name}: {len(cells)} cell{'s' * (len(cells) > 1)}" + (f" of {who}" if who else "")
    yield same(
        ("workload.name workload.input_len workload.output_len", f"{c.workload.name}: {lengths}"),
        ("engine.device_kv_budget", f"device KV budget {show_bytes(int(c.engine.device_kv_budget))}"),
        ("engine.host_kv_budget", f"host pool {show_bytes(int(c.engine.host_kv_budget))}"),
    )
    yield _load(cells)


def _load(cells: Sequence[Cell]) -> str:
    """Concurrencies and requests; the requests only where all cells are driven alike."""
    load = cells[0].config.load
    if load.mode is LoadMode.open and load.arrivals:
        most = ", ".join(map(str, load.concurrencies))
        line = f"open loop, arrivals: {load.arrivals.value}, at most {most} in flight"
    else:
        line = f"concurrency {', '.join(map(str, load.concurrencies))}"
    if len({tuple(sorted((p.concurrency, p.num_requests) for p in _points(cell))) for cell in cells}) == 1:
        counts = {point.concurrency: point.num_requests for point in _points(cells[0])}
        line += f"; requests per point {', '.join(f'{counts[n]:,}' for n in load.concurrencies)}"
    return line + (f"; {load.repeats} repeats" if load.repeats > 1 else "")


def _points(cell: Cell) -> list[Point]:
    return [*cell.points, *cell.done]


def _flat(cell: Cell) -> dict[str, Any]:
    """Dotted key -> value of everything that defines the cell, but for the measured costs that follow from the rest."""
    groups = {key: value for key, value in to_plain(cell.config).items() if defines_cell(key)}
    groups["platform"] = {key: value for key, value in groups["platform"].items() if key != "native"}
    return dict(_leaves(groups, ""))


def _leaves(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _varies(flat: Sequence[dict[str, Any]], key: str) -> bool:
    return defines_cell(key) and any(settings[key] != flat[0][key] for settings in flat)


def _follows_name(flat: Sequence[dict[str, Any]], key: str) -> bool:
    """Whether the name of its group says this key's value, as a model's says its sizes; for the engine's settings,
    whether all names and the system together do, as a model and a platform say what memory there is for KV."""
    group = key.split(".")[0]
    names = (
        [*_NAMES, "offload.system"] if group == "engine" else [name for name in _NAMES if name.split(".")[0] == group]
    )
    known: dict[Any, Any] = {}
    return bool(names) and all(known.setdefault(tuple(s[n] for n in names), s[key]) == s[key] for s in flat)


def _shown(key: str, value: Any) -> str:
    if key == "platform.link.bandwidth" and value is not None:
        return show_rate(int(value)).replace(" ", "")
    return show_bytes(int(value)).replace(" ", "") if key.endswith("_budget") else str(value)
