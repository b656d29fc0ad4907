"""Rows on disk -> groups that may be compared -> one aggregated line per offload system.

A group holds everything of one (engine, model, selector, platform, link, workload, lengths, k, arrivals): its systems
answer the same question. A series is one line of a group: a system, its B and, where one experiment ran
the same system and B with several configs, what differs between them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import labels
from harness import store
from harness.records import MEASURES, Status

GROUP_KEYS = (
    *("engine", "model", "selector", "platform", "link", "workload"),
    *("input_len", "output_len", "top_k", "arrivals"),
)
SIMULATED = "simulated"  # an engine whose figures must say so on their face
CLOSED = "closed"  # `arrivals` of the closed loop
_NO_PREFETCH = "no shared selections: fell back to sync"
_PACE = ("load.request_rate", "load.slowdown")  # what varies along a line of an open loop


@dataclass(frozen=True, slots=True)
class Axis:
    """What a group's points differ in, in words."""

    name: str  # in sentences
    label: str  # of an axis
    header: str  # of a column


_CONCURRENCY = Axis("concurrency", "Concurrency (requests in flight)", "C")
_RATE = Axis("request rate", "Request rate asked for (requests/s)", "req/s")
_SPEED = Axis("pace", "Pace (times the trace's own)", "pace")


@dataclass(frozen=True, slots=True)
class Series:
    """One line: an offload system at one B and variant, which is one cell."""

    system: str
    cache_slots: int | None
    variant: str
    outputs_valid: bool
    cell_id: str
    words: str  # in legends
    short: str  # in tables
    colour: str
    marker: str

    @property
    def style(self) -> labels.SystemStyle:
        return labels.style_of(self.system)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that may be compared. `rows` has every point with a `series` column (index into `series`).

    In an open loop the column `concurrency`, by which points are told apart and ordered, holds the pace: requests
    per second asked for, or how many times faster than it was recorded a trace is replayed.

    `points` has one line per (series, concurrency) with ok rows: for each measure m its mean over the
    repeats as `m`, its extremes as `m_min` and `m_max`, and `repeats`.
    """

    key: dict[str, Any]
    slug: str  # for file names; empty when the experiment has one group
    rows: pd.DataFrame
    series: list[Series]
    points: pd.DataFrame
    about: str = ""  # what the lengths are: exact, or `about ` or `up to ` so many tokens

    @property
    def title(self) -> str:
        k = self.key
        top_k = "dense" if k["top_k"] is None else f"k={k['top_k']}"
        lengths = f"{self.about}{k['input_len']:,} tokens in, {k['output_len']:,} out"
        link = f", {self.link}" if self.link else ""
        where = f"{k['engine']} on {k['platform']}{link}"
        found = f"{k['model']}, {k['selector']} ({top_k}), {k['workload']}: {lengths}; {where}"
        return found if self.is_closed else f"{found}; open loop, arrivals: {k['arrivals']}"

    @property
    def link(self) -> str | None:
        """`host link emulated 2 GB/s + 10 us` where it is emulated; None for a real one or a memory copy."""
        link = str(self.key["link"])
        return f"host link {link}" if link.startswith("emulated") else None

    @property
    def is_closed(self) -> bool:
        """Whether its points are closed loops of some concurrency; else the concurrency columns hold a pace."""
        return self.key["arrivals"] == CLOSED

    @property
    def axis(self) -> Axis:
        return _CONCURRENCY if self.is_closed else _SPEED if self.key["arrivals"] == "trace" else _RATE

    def at(self, concurrency: float) -> str:
        """A point's concurrency, or pace, as it is shown."""
        return f"{int(concurrency):,}" if self.is_closed else f"{concurrency:.3g}"

    @property
    def concurrencies(self) -> list[float]:
        return sorted(set(self.rows["concurrency"].tolist()))

    @property
    def not_ok(self) -> pd.DataFrame:
        return self.rows[self.rows["status"] != Status.OK.value]

    def line(self, index: int, *measures: str) -> pd.DataFrame:
        """The points of one series at which all `measures` were taken, by rising concurrency."""
        mine = self.points[self.points["series"] == index]
        return mine.dropna(subset=list(measures)).sort_values("concurrency", ignore_index=True)

    def best_points(self) -> dict[int, pd.Series]:
        """Of each series with any, the point of its highest output throughput."""
        return {
            i: line.loc[line["output_throughput"].idxmax()]
            for i in range(len(self.series))
            if len(line := self.line(i, "output_throughput"))
        }

    def baseline_of(self, index: int) -> int | None:
        """The full-KV series to compare a series with: that of its variant, else the only one."""
        found = [i for i, s in enumerate(self.series) if s.system == labels.BASELINE]
        same = [i for i in found if self.series[i].variant == self.series[index].variant]
        return next(iter(same if same else found if len(found) == 1 else []), None)


@dataclass(frozen=True, slots=True)
class Experiment:
    """One results folder, read. `configs` has one resolved config per cell."""

    name: str
    description: str
    groups: list[Group]
    configs: dict[str, dict[str, Any]]
    rows: pd.DataFrame


def load(experiment_dir: Path | str) -> Experiment:
    """Read one experiment. Raises ValueError for a folder that is missing, corrupt or without points."""
    rows = store.read_rows(Path(experiment_dir))
    if rows.empty:
        raise ValueError(
            f"{experiment_dir}: holds no points; name the folder of one experiment, such as results/quickstart"
        )
    first = rows.drop_duplicates("cell_id")
    paths = zip(first["cell_id"], first["point_path"], strict=True)
    configs = {cell: store.read_config(Path(path)) for cell, path in paths}
    rows = rows.assign(arrivals=[_arrivals(configs[cell]) for cell in rows["cell_id"]])
    return Experiment(
        name=str(rows["experiment"].iloc[0]),
        description=str(configs[rows["cell_id"].iloc[0]].get("description") or ""),
        groups=_groups(rows, configs),
        configs=configs,
        rows=rows,
    )


def _groups(rows: pd.DataFrame, configs: dict[str, dict[str, Any]]) -> list[Group]:
    records = [tuple(map(_plain, values)) for values in rows[list(GROUP_KEYS)].itertuples(index=False)]
    keys = sorted(set(records), key=lambda key: tuple((v is None, v) for v in key))
    varying = [i for i in range(len(GROUP_KEYS)) if len({key[i] for key in keys}) > 1]
    groups = []
    for key in keys:
        slug = "_".join(f"{GROUP_KEYS[i]}-{key[i]}" for i in varying)
        mine = rows[[record == key for record in records]].reset_index(drop=True)
        groups.append(_group(dict(zip(GROUP_KEYS, key, strict=True)), slug, mine, configs))
    return groups


def _group(key: dict[str, Any], slug: str, rows: pd.DataFrame, configs: dict[str, dict[str, Any]]) -> Group:
    if key["arrivals"] != CLOSED:
        rows = rows.assign(concurrency=[_pace(configs[cell]) for cell in rows["cell_id"]])
    cells = rows.drop_duplicates("cell_id")
    slots = [_plain(b) for b in cells["cache_slots"]]
    lines: dict[tuple[str, int | None], list[str]] = {}
    for cell, system, b in zip(cells["cell_id"], cells["offload"], slots, strict=True):
        lines.setdefault((system, b), []).append(cell)
    told: dict[str, set[str]] = {}  # of each system: the settings that tell lines of one B apart, named at every B
    for (system, _), members in lines.items():
        told.setdefault(system, set()).update(_differing([flat for flat, _ in _bundles(members, configs)]))
    variants = {line: _variants(_bundles(members, configs), told[line[0]]) for line, members in lines.items()}
    unprefetched = cells["prefetch"].astype(str).str.startswith("none (")
    fell_back = set(cells[unprefetched & cells["outputs_valid"]]["cell_id"])  # the oracle has no IO to prefetch
    valid = dict(zip(cells["cell_id"], cells["outputs_valid"], strict=True))
    count = Counter(system for system, b in lines for _ in variants[system, b])
    series: list[Series] = []
    owner: dict[str, int] = {}
    for system, b in sorted(lines, key=lambda line: (labels.system_order(line[0]), line[1] or 0)):
        several_b = sum(other == system for other, _ in lines) > 1
        for variant, members in variants[system, b]:
            owner |= dict.fromkeys(members, len(series))
            rank = sum(s.system == system for s in series)
            look = _look(system, rank, count[system])
            if members[0] in fell_back:
                variant = ", ".join(filter(None, [_NO_PREFETCH, variant]))
            series.append(_series(system, b, variant, bool(valid[members[0]]), members[0], several_b, look))
    rows = rows.assign(series=[owner[cell] for cell in rows["cell_id"]])
    return Group(
        key=key,
        slug=re.sub(r"[^\w.-]+", "-", slug),
        rows=rows,
        series=series,
        points=aggregate(rows),
        about=_about(configs[series[0].cell_id]),
    )


def _about(config: dict[str, Any]) -> str:
    """What `input_len` and `output_len` are; see `harness.schema.WorkloadConfig`."""
    work = config.get("workload") or {}
    if work.get("lengths") in ("uniform", "lognormal"):
        return "about "
    return "up to " if work.get("max_input_len") else ""


def _arrivals(config: dict[str, Any]) -> str:
    """How the requests of a cell came: `closed`, or the open loop's kind."""
    load = config.get("load") or {}
    return str(load["arrivals"]) if load.get("mode") == "open" else CLOSED


def _pace(config: dict[str, Any]) -> float:
    """Of an open loop: requests per second, or times a trace's own speed."""
    load = config["load"]
    return float(load["request_rate"]) if load.get("request_rate") else 1 / float(load["slowdown"])


def _series(
    system: str, b: int | None, variant: str, valid: bool, cell: str, several_b: bool, look: dict[str, str]
) -> Series:
    style = labels.style_of(system)
    b_shown = b is not None and (style.shows_slots or several_b)
    extra = ", ".join(filter(None, [f"B={b:,}" if b_shown else "", variant]))
    return Series(
        system=system,
        cache_slots=b,
        variant=variant,
        outputs_valid=valid,
        cell_id=cell,
        words=_with_extra(style.words, extra),
        short=_with_extra(style.short, extra),
        **look,
    )


def _look(system: str, rank: int, count: int) -> dict[str, str]:
    """What tells the `rank`-th of a system's `count` lines from the others."""
    style = labels.style_of(system)
    return {"colour": labels.shade(style.colour, rank, count), "marker": labels.marker(style, rank)}


def _with_extra(words: str, extra: str) -> str:
    """`Fetch all` -> `Fetch all (B=64)`; `Full KV (baseline)` -> `Full KV (baseline, ...)`."""
    if not extra:
        return words
    return f"{words[:-1]}, {extra})" if words.endswith(")") else f"{words} ({extra})"


def _bundles(cells: list[str], configs: dict[str, dict[str, Any]]) -> list[tuple[dict[str, Any], list[str]]]:
    """(flat config, cell ids) of each line that these cells of one system and B make.

    Cells of an open loop that differ in nothing but their pace are the points of one line.
    """
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for cell in cells:
        flat = dict(flatten(configs[cell]))
        name = cell
        if _arrivals(configs[cell]) != CLOSED:
            flat = {key: value for key, value in flat.items() if key not in _PACE}
            name = repr(sorted(flat.items()))
        found.setdefault(name, (flat, []))[1].append(cell)
    return list(found.values())


def _differing(flat: list[dict[str, Any]]) -> set[str]:
    """Keys whose values are not the same in all. A key that some lack came with another version: it is named only
    where no other tells them apart."""
    keys = set().union(*flat)
    differing = {key for key in keys if len({repr(one.get(key)) for one in flat}) > 1}
    return {key for key in differing if all(key in one for one in flat)} or differing


def _variants(bundles: list[tuple[dict[str, Any], list[str]]], told: set[str]) -> list[tuple[str, list[str]]]:
    """(what sets it apart, cell ids) for the lines of one system and B, by the settings that the system's labels name;
    one line needs no words where they name none."""
    named = [
        (", ".join(f"{k.rpartition('.')[2]}={flat.get(k)}" for k in sorted(told)), cells) for flat, cells in bundles
    ]
    if len(bundles) == 1:
        return named
    return sorted((words or f"cell {cells[0][:8]}", cells) for words, cells in named)


def aggregate(rows: pd.DataFrame) -> pd.DataFrame:
    """Ok rows only, one line per (series, concurrency): see Group.points."""
    ok = rows[rows["status"] == Status.OK.value]
    values = ok[["series", "concurrency", *MEASURES]].astype("float64")
    grouped = values.groupby(["series", "concurrency"])
    mean = grouped.mean()
    parts = [
        mean,
        grouped.min().clip(upper=mean).add_suffix("_min"),  # the mean of equal repeats may be off by a rounding,
        grouped.max().clip(lower=mean).add_suffix("_max"),  # and the extremes must still enclose it
        grouped.size().rename("repeats"),
    ]
    kinds = {"series": "int64", "concurrency": rows["concurrency"].dtype}
    return pd.concat(parts, axis=1).reset_index().astype(kinds)


def flatten(mapping: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """(dotted key, leaf) pairs of a nested mapping."""
    for key, value in mapping.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> Any:
    """A table cell as a Python value: NA as None, numpy integers as int."""
    return None if pd.isna(value) else int(value) if not isinstance(value, str) else value
