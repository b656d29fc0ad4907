"""From a grid to work: cells, their points, what each needs, what is already on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engine.admission import FullOutput
from harness.engine.footprint import Footprint, KVBytes
from harness.engine.kv.sharing import prefetch_label
from harness.fit import check_fit, nearest
from harness.identity import cell_id
from harness.instances.sglang_limits import refusal as sglang_refusal
from harness.records import SERVER_MEASURES, ResultRow, ServerStats, Status
from harness.schema import Config, EngineKind, to_yaml
from harness.simulation.pools import capacity, make_pools
from harness.store import point_dir, stored_status
from harness.validate import ConfigError

RETRIED = (Status.FAILED, Status.INVALID)  # what `retry_failed` runs again; infeasible stays so for the same cell


@dataclass(frozen=True, slots=True)
class Point:
    """One result row to be: a concurrency and a repeat of a cell."""

    concurrency: int
    repeat: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One serving instance, the points to measure on it, and those that are on disk already."""

    cell_id: str
    config: Config
    points: tuple[Point, ...]  # to run
    done: tuple[Point, ...]  # on disk
    infeasible: str | None  # why its requests can never be served; no instance is started then
    config_yaml: str = ""  # for every point's folder
    note: str | None = None  # which other cell on disk it is not

    @property
    def request(self) -> KVBytes:
        """Bytes the longest request of the workload holds."""
        return Footprint(self.config).request(sum(self.config.workload.longest))

    @property
    def capacity(self) -> int:
        """Requests of the workload that fit at once, on all ranks."""
        engine, need = self.config.engine, self.request
        if engine.kind.models_memory:
            return capacity(self.config, self.config.workload.input_len, self.config.workload.output_len)
        fits = (int(engine.device_kv_budget) - Footprint(self.config).workspace) // need.device
        if need.host:
            fits = min(fits, int(engine.host_kv_budget) // need.host)
        return max(0, min(fits, engine.max_running_requests))

    def row(self, point: Point, status: Status, reason: str | None = None, **rest: Any) -> ResultRow:
        """The point's result row; `rest`: measures and count_source."""
        c = self.config
        return ResultRow(
            experiment=c.name,
            cell_id=self.cell_id,
            engine=c.engine.kind.value,
            model=c.model.name,
            selector=c.selector.kind.value,
            platform=c.platform.name,
            offload=c.offload.system.value,
            top_k=c.selector.top_k,
            cache_slots=c.offload.cache_slots,
            workload=c.workload.name,
            input_len=c.workload.input_len,
            output_len=c.workload.output_len,
            concurrency=point.concurrency,
            num_requests=point.num_requests,
            repeat=point.repeat,
            status=status,
            reason=reason,
            link=c.platform.link_label,
            prefetch=prefetch_label(c),
            policy=c.replay.policy if c.engine.kind is EngineKind.replay else None,
            tokens=c.replay.tokens if c.engine.kind is EngineKind.replay else None,
            outputs_valid=c.offload.system.outputs_valid,
            **rest,
        )


def experiment_dir(config: Config) -> Path:
    return Path(config.results_dir) / config.name


def plan(configs: Sequence[Config]) -> list[Cell]:
    """The cells of an experiment in the order they run in; points whose row is on disk are not run again.

    Rows of status `failed` and `invalid` count as done too, unless `retry_failed`. Raises ConfigError for cells
    that serve beside cells that do not, and for a folder that holds what was measured with another config.
    """
    if len({config.engine.kind.takes_requests for config in configs}) > 1:
        raise ConfigError("engine: one experiment either serves requests or measures in place, never both")
    folder = experiment_dir(configs[0])
    stored = stored_status(folder)
    identities = [cell_id(config) for config in configs]
    strangers = sorted({cell for cell, _, _ in stored} - set(identities))
    cells = []
    for config, identity in zip(configs, identities, strict=True):
        todo: list[Point] = []
        done: list[Point] = []
        for point in _points(config):
            status = stored.get((identity, point.concurrency, point.repeat))
            again = config.retry_failed and status in RETRIED
            (todo if status is None or again else done).append(point)
        text = to_yaml(config)
        check_fit((point_dir(folder, identity, point.concurrency, point.repeat) for point in done), text)
        note = None if done or not strangers else nearest(folder, text, strangers)
        refusal = None
        if config.engine.kind.plans_memory:
            rule = make_pools(config) if config.engine.kind.models_memory else FullOutput(config)
            refusal = rule.refusal(*config.workload.longest)
        if config.engine.kind is EngineKind.sglang:
            refusal = sglang_refusal(config) or refusal
        cells.append(Cell(identity, config, tuple(todo), tuple(done), refusal, text, note))
    return in_run_order(cells)


def in_run_order(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of a model, a platform and an engine one after another, so that weights that a node has read are still
    in its memory for the next; models in the order they are first named, within each the order of the grid."""
    firsts: dict[tuple[str, ...], int] = {}
    keys = []
    for cell in cells:
        c = cell.config
        parts = (f"{c.model.name} {c.model.weights}", c.platform.name, c.engine.kind.value)
        keys.append([firsts.setdefault(parts[: n + 1], len(firsts)) for n in range(len(parts))])
    return [cell for _, cell in sorted(zip(keys, cells, strict=True), key=lambda pair: pair[0])]


def _points(config: Config) -> list[Point]:
    load = config.load
    return [
        Point(c, repeat, load.num_requests or c * (load.requests_per_worker or 0))
        for repeat in range(load.repeats)
        for c in load.concurrencies
    ]


def server_measures(share: ServerStats) -> dict[str, float | int | None]:
    """What a point's share of the server's counters says (records.SERVER_MEASURES)."""

    def ratio(a: float | None, b: float | None) -> float | None:
        return None if a is None or not b else a / b

    exposed = ratio(share.exposed_io_seconds, share.decode_steps)
    misses = ratio(share.misses, share.lookups)
    return {
        "decode_only_throughput": ratio(share.decode_tokens, share.decode_seconds),
        "hit_rate": None if misses is None else 1 - misses,
        "misses_per_step": ratio(share.misses, share.decode_steps),
        "exposed_io_ms_per_token": None if exposed is None else exposed * 1e3,
    } | {name: getattr(share, name) for name in SERVER_MEASURES if hasattr(share, name)}
