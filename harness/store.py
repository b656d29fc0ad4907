"""Results on disk, which are the truth: one folder per point, written whole or not at all.

`<results_dir>/<experiment>/<cell_id>/c<C>-r<repeat>/` holds `config.yaml`, `result.json` (the flat row),
`requests.parquet` (one line per request), `server.log` and `env.json`; with `trace.record` also `selections.trace`,
and for engine=replay `steps.parquet` (one line per decode step). A folder under its final name is complete; one that
is being written has a hidden name ending in `.partial`, which every reader ignores.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.records import MEASURES, RequestRecord, ResultRow, Status

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_POINT_NAME = re.compile(r"c(\d+)-r(\d+)")
_PARTIAL = ".partial"
STEPS_FILE = "steps.parquet"

# a ResultRow field's annotation -> pandas dtype
_DTYPES = {"int": "int64", "int | None": "Int64", "bool": "bool"}
_NULLABLE_TEXT = ("reason", "count_source", "server_version", "policy")
_COUNTS = (
    *("completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("h2d_bytes", "device_kv_bytes", "host_kv_bytes", "peak_running", "retractions", "replayed_selections"),
    "decode_tokens",
    *("steady_requests", "late_dispatches", "peak_concurrency", "load_processes"),
)
# column -> pandas dtype, in the order of ResultRow.to_flat()
COLUMN_DTYPES: dict[str, str] = {
    **{f.name: _DTYPES.get(str(f.type), "str") for f in fields(ResultRow) if f.name != "measures"},
    **{name: "Int64" if name in _COUNTS else "float64" for name in MEASURES},
}


def point_dir(experiment_dir: Path, cell_id: str, concurrency: int, repeat: int) -> Path:
    """Where a point's files lie, whether or not they exist."""
    return experiment_dir / cell_id / f"c{concurrency}-r{repeat}"


def write_point(
    experiment_dir: Path,
    row: ResultRow,
    requests: Sequence[RequestRecord],
    *,
    config_yaml: str,
    env: dict[str, Any],
    server_log: str,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Store one point atomically and durably, with further `files` by name; returns its folder.

    A number that is not finite (the mean of nothing) is stored as null: JSON has no NaN, and null is how
    a row says "not measured". `requests` may be empty; the parquet file is then empty but typed.
    Raises FileExistsError where an ok point lies already (any other status is replaced) and ValueError
    for a row whose values have the wrong type.
    """
    final = point_dir(experiment_dir, row.cell_id, row.concurrency, row.repeat)
    flat = _json_ready(row.to_flat())
    _check_types(flat)
    if final.exists() and read_row(final).status is Status.OK:
        raise FileExistsError(f"{final} already holds an ok point; delete that folder to measure it again")
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial_name(final)
    partial.mkdir()
    try:
        _write_text(partial / "config.yaml", config_yaml)
        _write_text(partial / "server.log", server_log)
        _write_json(partial / "env.json", env)
        _write_requests(partial / "requests.parquet", requests)
        for name, data in (files or {}).items():
            _write_file(partial / name, data)
        _write_json(partial / "result.json", flat)
        _fsync_dir(partial)
        _put_in_place(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def read_row(point: Path | str) -> ResultRow:
    """The row of one point folder. Raises ValueError naming the file when it cannot be read as a row."""
    return ResultRow.from_flat(_read_flat(Path(point)))


def read_requests(point: Path | str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The requests of one point, one line each, columns as RequestRecord's fields (or those named)."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(point) / "requests.parquet"
    try:
        table = pq.read_table(path, columns=list(columns) if columns else None, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(path, error) from error
    return table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def encode_steps(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """STEPS_FILE of a point: one line per decode step, as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(columns)), buffer)
    return bytes(buffer.getvalue())


def read_steps(point: Path | str) -> pd.DataFrame:
    """What a point measured step by step: `step` and measures. Raises ValueError where it has no such file."""
    import pandas as pd

    path = Path(point) / STEPS_FILE
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def read_rows(experiment_dir: Path | str) -> pd.DataFrame:
    """One tidy table, one row per point, sorted by (cell_id, concurrency, repeat).

    Columns are always those of `ResultRow.to_flat()`, in that order and typed as COLUMN_DTYPES says (also
    for zero rows), then `point_path`. A measure that was not taken is NaN (pd.NA for counts).
    Raises ValueError for a missing folder and for a point whose result.json is corrupt.
    """
    import pandas as pd

    experiment_dir = Path(experiment_dir)
    if not experiment_dir.is_dir():
        raise ValueError(
            f"{experiment_dir}: no such results folder; "
            f"make it with `python -m harness experiment={experiment_dir.name}`"
        )
    points = list(_points(experiment_dir))
    flats = [_read_flat(point) for point in points]
    columns = {name: pd.Series([f[name] for f in flats], dtype=t) for name, t in COLUMN_DTYPES.items()}
    table = pd.DataFrame(columns | {"point_path": pd.Series([str(p) for p in points], dtype="str")})
    return table.sort_values(["cell_id", "concurrency", "repeat"], ignore_index=True)


def read_config(point: Path | str) -> dict[str, Any]:
    """The resolved config a point ran with. Raises ValueError naming the file when it is no mapping."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    path = Path(point) / "config.yaml"
    try:
        return _as_mapping(OmegaConf.to_container(OmegaConf.load(path)))
    except (OSError, TypeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise _unreadable(path, error) from error


def read_env(point: Path | str) -> dict[str, Any]:
    """The environment a point ran in. Raises ValueError naming the file when it is corrupt."""
    return _read_json(Path(point) / "env.json")


def stored_status(experiment_dir: Path | str) -> dict[tuple[str, int, int], Status]:
    """(cell_id, concurrency, repeat) -> status of every stored point; empty where there is no folder."""
    experiment_dir = Path(experiment_dir)
    if not experiment_dir.is_dir():
        return {}
    rows = (read_row(point) for point in _points(experiment_dir))
    return {(row.cell_id, row.concurrency, row.repeat): row.status for row in rows}


def clean_partial(experiment_dir: Path) -> list[Path]:
    """Remove what an interrupted `write_point` left; returns the folders removed.

    Call it before a sweep starts, never while another process writes into the same experiment.
    """
    leftovers = sorted(experiment_dir.glob(f"*/.*{_PARTIAL}"))
    for leftover in leftovers:
        shutil.rmtree(leftover)
    return leftovers


_DELETE_HINT = "delete the point's folder and run the experiment again"
_ACCEPTS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int64": (int,),
    "Int64": (int, type(None)),
    "float64": (int, float, type(None)),
}


def _points(experiment_dir: Path) -> Iterator[Path]:
    for cell in sorted(experiment_dir.iterdir()):
        if cell.is_dir():
            yield from (point for point in cell.iterdir() if _POINT_NAME.fullmatch(point.name))


def _read_flat(point: Path) -> dict[str, Any]:
    path = point / "result.json"
    stored = _read_json(path)
    try:
        flat = ResultRow.from_flat(stored).to_flat()
        _check_types(flat)
    except KeyError as error:
        raise _unreadable(path, LookupError(f"no key {error}")) from error
    except (TypeError, ValueError) as error:
        raise _unreadable(path, error) from error
    return flat


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _as_mapping(json.loads(path.read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        raise _unreadable(path, error) from error


def _as_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a mapping was expected, not a {type(value).__name__}")
    return value


def _unreadable(path: Path, error: BaseException) -> ValueError:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"{path}: cannot be read ({why}); {_DELETE_HINT}")


def _check_types(flat: dict[str, Any]) -> None:
    for name, dtype in COLUMN_DTYPES.items():
        value = flat[name]
        if name in _NULLABLE_TEXT and value is None:
            continue
        if not isinstance(value, _ACCEPTS[dtype]) or (isinstance(value, bool) and dtype != "bool"):
            raise ValueError(f"{name} is {value!r}, which is no {dtype}")


def _partial_name(final: Path) -> Path:
    return final.parent / f".{final.name}.{uuid.uuid4().hex[:12]}{_PARTIAL}"


def _put_in_place(partial: Path, final: Path) -> None:
    """Rename `partial` to `final`; a point that is not ok and lies there moves aside first."""
    replaced = None
    if final.exists():
        replaced = _partial_name(final)
        os.rename(final, replaced)
    try:
        os.rename(partial, final)
    except OSError as error:  # a folder cannot be renamed onto one with files: another writer was first
        if not final.exists():
            raise
        raise FileExistsError(f"{final} was written by another process meanwhile") from error
    _fsync_dir(final.parent)
    if replaced is not None:
        shutil.rmtree(replaced)


def _json_ready(value: Any) -> Any:
    """Numpy scalars as Python numbers and non-finite numbers as None, at any depth."""
    if isinstance(value, dict):
        return {str(key): _json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_ready(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_json(path: Path, value: dict[str, Any]) -> None:
    _write_text(path, json.dumps(_json_ready(value), indent=1, allow_nan=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    _write_file(path, text.encode("utf-8", errors="backslashreplace"))


def _write_file(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_requests(path: Path, requests: Sequence[RequestRecord]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _request_schema()
    # column by column: dataclasses.asdict would copy every chunk list
    columns = {name: [getattr(request, name) for request in requests] for name in schema.names}
    with path.open("wb") as file:
        pq.write_table(pa.table(columns, schema=schema), file)
        file.flush()
        os.fsync(file.fileno())


def _request_schema() -> pa.Schema:
    import pyarrow as pa

    by_annotation = {
        "str": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "list[float]": pa.list_(pa.float64()),
        "list[int]": pa.list_(pa.int64()),
    }
    return pa.schema(
        [
            pa.field(f.name, by_annotation[str(f.type).removesuffix(" | None")], str(f.type).endswith("None"))
            for f in fields(RequestRecord)
        ]
    )


def _fsync_dir(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
