"""Mirror an experiment to Weights & Biases: one run per cell, its points, at the end the figures.

The results on disk are the truth, so nothing here may stop or slow a measurement: what W&B raises
becomes one printed line. A cell's run has the same id whenever the sweep goes on, and is given each row once; what is
on disk and was never logged is logged then. `make_tracker` is the entry; wandb is imported only when it is used.
"""

from __future__ import annotations

import netrc
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from harness.records import ResultRow
from harness.schema import TrackerConfig, TrackerKind
from harness.store import cell_rows, digest
from harness.tracked import Tracked

INIT_TIMEOUT_S = 10.0
FINISH_TIMEOUT_S = 30.0  # an upload that takes longer is given up; the files stay for `wandb sync`
REPORT = "report"  # the run of the figures; no cell is called so
_MODES = ("auto", "online", "offline")
_ENV_MODES = {
    "online": "online",
    "run": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
# `wandb login` writes the first, older ones wrote the second; wandb accepts both for its own cloud.
_DEFAULT_HOSTS = ("api.forge.coreweave.com", "api.wandb.ai")


class Tracker(Protocol):
    """Where an experiment is mirrored to. One cell is open at a time; no method raises for a tracker's trouble."""

    def start_cell(self, cell_id: str, config: dict[str, Any]) -> None:
        """Open the cell's run with its resolved config, or go on in it; an open one is finished first."""

    def log_point(self, row: ResultRow) -> None:
        """Add one point to the open cell's run."""

    def finish_cell(self) -> None:
        """Close the open run; nothing happens when none is."""

    def catch_up(self, cells: Mapping[str, dict[str, Any]]) -> bool:
        """Log what is on disk of these cells (id -> resolved config) and never was; whether the figures are due too."""

    def log_figures(self, figures: list[Path], rows: list[dict[str, Any]]) -> None:
        """A run of its own for the whole experiment: the PNGs among `figures`, and `rows` as a table."""

    def close(self) -> None:
        """Finish everything and end the tracker's processes. It can be called twice."""


class NullTracker:
    """Tracks nothing (`tracker=none`)."""

    def start_cell(self, cell_id: str, config: dict[str, Any]) -> None:
        """Nothing."""

    def log_point(self, row: ResultRow) -> None:
        """Nothing."""

    def finish_cell(self) -> None:
        """Nothing."""

    def catch_up(self, cells: Mapping[str, dict[str, Any]]) -> bool:
        """Nothing."""
        return False

    def log_figures(self, figures: list[Path], rows: list[dict[str, Any]]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def make_tracker(
    cfg: TrackerConfig, *, experiment: str, results_dir: Path, say: Callable[[str], None] = print
) -> Tracker:
    """The tracker `cfg` asks for; warnings go to `say`, a line each.

    `WANDB_MODE` overrides the mode `auto`. Raises ValueError for an unknown mode and for `online` without a key.
    """
    if cfg.kind is TrackerKind.none:
        return NullTracker()
    mode = resolve_mode(cfg.mode)
    if mode == "disabled":
        return NullTracker()
    return WandbTracker(cfg, mode=mode, experiment=experiment, results_dir=results_dir, say=say)


def resolve_mode(mode: str) -> str:
    """`online`, `offline` or `disabled`, from the configured mode, WANDB_MODE and whether there is a key."""
    if mode not in _MODES:
        raise ValueError(f"tracker.mode={mode!r} is unknown; choose one of {', '.join(_MODES)}")
    wanted = os.environ.get("WANDB_MODE") if mode == "auto" else None
    if wanted:
        if wanted not in _ENV_MODES:
            raise ValueError(f"WANDB_MODE={wanted!r} is unknown; choose one of {', '.join(_ENV_MODES)}")
        mode = _ENV_MODES[wanted]
    if mode == "auto":
        return "online" if has_key() else "offline"
    if mode == "online" and not has_key():
        raise ValueError(
            "W&B mode online needs a key: run `wandb login`, set WANDB_API_KEY, or use tracker.mode=offline"
        )
    return mode


def has_key() -> bool:
    """Whether wandb will find an API key without asking: WANDB_API_KEY, or its host in the netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    base_url = os.environ.get("WANDB_BASE_URL")
    hosts = (urlsplit(base_url).netloc,) if base_url else _DEFAULT_HOSTS
    try:
        entries = netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc")
    except (OSError, netrc.NetrcParseError):  # no file, or one that wandb could not read either
        return False
    return any(host in entries.hosts and entries.hosts[host][2] for host in hosts)


class WandbTracker:
    """W&B, online or offline; the run files lie under `<results_dir>/<experiment>/wandb`.

    An online run that cannot be opened or uploaded turns the rest of the experiment offline.
    """

    def __init__(
        self, cfg: TrackerConfig, *, mode: str, experiment: str, results_dir: Path, say: Callable[[str], None]
    ) -> None:
        self._cfg = cfg
        self._mode = mode
        self._experiment = experiment
        self._dir = results_dir / experiment
        self._say = say
        self._warned: set[str] = set()
        self._run: Any = None
        self._name = ""  # of the open run
        self._given: set[str] = set()  # rows it was given by this process
        self._used = False
        self._tracked = Tracked(self._dir / "wandb")

    def start_cell(self, cell_id: str, config: dict[str, Any]) -> None:
        """See `Tracker`. Rows on disk that the run lacks are logged first."""
        self.finish_cell()
        with self._guarded("opening a run"):
            self._run, self._name = self._open(job_type="cell", name=cell_id, config=config), cell_id
            self._run.define_metric("concurrency")
            self._run.define_metric("*", step_metric="concurrency")
            # online the server says up to where it has the history; files of earlier processes have theirs for good
            has = self._run.starting_step if self._mode == "online" else None
            for row in cell_rows(self._dir, cell_id):
                step = self._tracked.step_of(cell_id, digest(row))
                if step is None or (has is not None and step >= has):
                    self.log_point(row)

    def log_point(self, row: ResultRow) -> None:
        """See `Tracker`. Measures that were not taken are left out; a row that this run was given already is."""
        if self._run is None or digest(row) in self._given:
            return
        point: dict[str, Any] = {k: v for k, v in row.measures.items() if v is not None}
        point |= {"concurrency": row.concurrency, "repeat": row.repeat, "status": row.status.value}
        if row.reason is not None:
            point["reason"] = row.reason
        with self._guarded("logging a point"):
            self._run.log(point, step=self._tracked.add(self._name, digest(row)))
            self._given.add(digest(row))

    def finish_cell(self) -> None:
        """See `Tracker`."""
        run, self._run = self._run, None
        self._given.clear()
        if run is None:
            return
        with self._guarded("finishing a run"):
            try:
                run.finish()
            except TimeoutError:
                self._go_offline(f"the upload took longer than {FINISH_TIMEOUT_S:.0f} s")

    def catch_up(self, cells: Mapping[str, dict[str, Any]]) -> bool:
        """See `Tracker`. A driver that was killed between a row's file and its log leaves such rows."""
        behind = [cell_id for cell_id in cells if self._lacks_rows(cell_id)]
        for cell_id in behind:
            self.start_cell(cell_id, cells[cell_id])
            self.finish_cell()
        return bool(behind) or not self._tracked.knows(REPORT)

    def _lacks_rows(self, cell_id: str) -> bool:
        return any(self._tracked.step_of(cell_id, digest(row)) is None for row in cell_rows(self._dir, cell_id))

    def log_figures(self, figures: list[Path], rows: list[dict[str, Any]]) -> None:
        """See `Tracker`."""
        self.finish_cell()
        with self._guarded("logging the figures"):
            import wandb

            columns = list(dict.fromkeys(key for row in rows for key in row))
            data = [[row.get(column) for column in columns] for row in rows]
            report: dict[str, Any] = {
                f"figures/{path.stem}": wandb.Image(str(path)) for path in figures if path.suffix == ".png"
            }
            report["results"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
            self._run, self._name = self._open(job_type="report", name=REPORT, config={}), REPORT
            self._run.log(report, step=self._tracked.add(REPORT, secrets.token_hex(8)))
        self.finish_cell()

    def close(self) -> None:
        """See `Tracker`."""
        self.finish_cell()
        if self._used:
            self._end_service()
        self._used = False

    def _end_service(self) -> None:
        with self._guarded("ending wandb's service"):
            import wandb

            wandb.teardown()

    def _open(self, *, job_type: str, name: str, config: dict[str, Any]) -> Any:
        if self._mode == "online":
            try:
                return self._init(job_type=job_type, name=name, config=config)
            except Exception as error:
                self._go_offline(_first_line(error))
                self._end_service()  # which takes the id of the run that did not open for one in use
        return self._init(job_type=job_type, name=name, config=config)

    def _init(self, *, job_type: str, name: str, config: dict[str, Any]) -> Any:
        import wandb

        self._dir.mkdir(parents=True, exist_ok=True)
        self._used = True
        settings = wandb.Settings(
            silent=True,
            console="off",  # wandb must not wrap stdout, where the progress display is
            init_timeout=INIT_TIMEOUT_S,
            finish_timeout=FINISH_TIMEOUT_S,
            finish_timeout_raises=True,
            x_disable_stats=True,  # its sampling would run beside the measurement
            x_disable_machine_info=True,
            x_save_requirements=False,
            disable_git=True,  # a remote's URL can hold a token
            disable_code=True,
        )
        wandb.setup(settings=settings)  # silences the service and the login too
        return wandb.init(
            project=self._cfg.project,
            entity=self._cfg.entity,
            dir=str(self._dir),
            mode=self._mode,  # type: ignore[arg-type]  # resolve_mode gives one of its literals
            id=self._tracked.run_id(name),  # given, since a WANDB_RUN_ID would make one run of all the cells
            resume="allow" if self._mode == "online" else None,  # offline there is nobody to ask what it has
            group=self._experiment,
            job_type=job_type,
            name=name,
            config=config,
            settings=settings,
        )

    def _go_offline(self, reason: str) -> None:
        self._mode = "offline"
        self._say(
            f"W&B: not online ({reason}); going on offline, upload later with `wandb sync {self._dir}/wandb/*run-*`"
        )

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Turn what W&B raises into one line, said once for each `what`."""
        try:
            yield
        except Exception as error:
            if what not in self._warned:
                self._warned.add(what)
                self._say(f"W&B: {what} failed ({_first_line(error)}); the results on disk are not affected")


def _first_line(error: BaseException) -> str:
    """The type and the first line of the message, short enough for one line of a terminal."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"
