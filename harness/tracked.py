"""What of an experiment W&B has been given: one line a logged point, in the experiment's folder beside W&B's own files.

A point keeps the step it was given in its run's history, so that a sweep that goes on, in another process or another
file of the same run, neither logs a point twice nor uses a step again.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = "logged.jsonl"


class Tracked:
    """The list of one experiment. Losing the file costs duplicates in W&B's history, nothing else."""

    def __init__(self, folder: Path):
        self._file = folder / FILE
        self._steps: dict[tuple[str, str], int] = {}  # (run, what was logged) -> its step
        self._next: dict[str, int] = {}
        self._origin = ""
        self._torn = False  # whether its last line was cut short: the next one must not continue it
        for line in self._lines():
            if "origin" in line:
                self._origin = str(line["origin"])
            elif {"run", "row", "step"} <= line.keys():
                self._note(str(line["run"]), str(line["row"]), int(line["step"]))

    def run_id(self, name: str) -> str:
        """The id of a run of this experiment, the same whenever it is asked for: of this folder, name and no other.

        The folder's origin is part of it, or two people's experiments of one name in one project would be one run.
        """
        if not self._origin:
            self._origin = secrets.token_hex(8)
            self._append({"origin": self._origin})
        return hashlib.sha256(f"{self._origin}/{name}".encode()).hexdigest()[:16]

    def step_of(self, run: str, row: str) -> int | None:
        """The step a row was logged at; None: it was not."""
        return self._steps.get((run, row))

    def knows(self, run: str) -> bool:
        """Whether anything of this run was logged."""
        return run in self._next

    def add(self, run: str, row: str) -> int:
        """A row is logged: the step it gets, that of its first time if it had one."""
        if (run, row) not in self._steps:
            step = self._next.get(run, 0)
            self._append({"run": run, "row": row, "step": step})
            self._note(run, row, step)
        return self._steps[run, row]

    def _note(self, run: str, row: str, step: int) -> None:
        self._steps[run, row] = step
        self._next[run] = max(self._next.get(run, 0), step + 1)

    def _append(self, line: dict[str, str | int]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write("\n" * self._torn + json.dumps(line) + "\n")
        self._torn = False

    def _lines(self) -> list[dict[str, Any]]:
        found = []
        with suppress(OSError):
            whole = self._file.read_text(encoding="utf-8")
            self._torn = bool(whole) and not whole.endswith("\n")
            for text in whole.splitlines():
                with suppress(ValueError):  # the last one, of a process that was killed while it wrote
                    found.append(json.loads(text))
        return [line for line in found if isinstance(line, dict)]
