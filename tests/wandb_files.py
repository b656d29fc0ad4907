"""Reading what W&B stored offline: for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32 << 10, 7


class Run:
    """One stored run: its identity, config and history."""

    def __init__(self, file: Path) -> None:
        self.run: Any = None  # stays so where its process was killed before it wrote who it is
        self.config: dict[str, Any] = {}
        self.points: list[dict[str, Any]] = []
        self.step_metrics: dict[str, str] = {}
        for record in records(file):
            match record.WhichOneof("record_type"):
                case "run":
                    self.run = record.run
                    self.config |= {u.key: json.loads(u.value_json) for u in record.run.config.update}
                case "history":
                    items = record.history.item
                    self.points.append({".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
                case "metric":
                    metric = record.metric
                    self.step_metrics[metric.glob_name or metric.name] = metric.step_metric


def stored_runs(experiment_dir: Path) -> dict[str, Run]:
    """Runs by their display name; of several with one name the last."""
    runs = [Run(file) for file in sorted(experiment_dir.glob("wandb/offline-run-*/run-*.wandb"))]
    return {run.run.display_name: run for run in runs}


def records(file: Path) -> Iterator[Any]:
    """The records of a `run-*.wandb` file: LevelDB blocks of crc(4) length(2) type(1) chunks after a header."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), HEADER, b""  # the file's own header is as long as a chunk's
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # full, last
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record
