"""Results on disk, which are the truth: one folder per point, written whole or not at all.

`<results_dir>/<experiment>/<cell_id>/c<C>-r<repeat>/` holds `config.yaml`, `result.json` (the flat row),
`requests.parquet` (one line per request), `server.log` and `env.json`; with `trace.record` also `selections.trace`,
and for engine=replay `steps.parquet` (one line per decode step). A folder under its final name is complete; one that
is being written has a hidden name ending in `.partial`, which every reader ignores (`harness.durable`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.durable import recover, write_folder
from harness.records import MEASURES, RequestRecord, ResultRow, Status

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_POINT_NAME = re.compile(r"c(\d+)-r(\d+)")
RESULT_FILE = "result.json"
STEPS_FILE = "steps.parquet"

# a ResultRow field's annotation -> pandas dtype
_DTYPES = {"int": "int64", "int | None": "Int64", "bool": "bool"}
_NULLABLE_TEXT = tuple(f.name for f in fields(ResultRow) if f.type == "str | None")
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
    Raises FileExistsError where an ok point lies already (any other status is replaced), ValueError for a row whose
    values have the wrong type and StoreError where the disk refuses.
    """
    final = point_dir(experiment_dir, row.cell_id, row.concurrency, row.repeat)
    flat = _json_ready(row.to_flat())
    _check_types(flat)
    if final.exists() and read_row(final).status is Status.OK:
        raise FileExistsError(f"{final} already holds an ok point; delete that folder to measure it again")
    texts = {"config.yaml": config_yaml, "server.log": server_log, "env.json": _json(env), RESULT_FILE: _json(flat)}
    content = {name: text.encode("utf-8", errors="backslashreplace") for name, text in texts.items()}
    write_folder(final, content | {"requests.parquet": _encode_requests(requests), **(files or {})}, last=RESULT_FILE)
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
    return _parquet(columns)


def read_steps(point: Path | str) -> pd.DataFrame:
    """What a point measured step by step: `step` and measures. Raises ValueError where it has no such file."""
    import pandas as pd

    path = Path(point) / STEPS_FILE
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def cell_rows(experiment_dir: Path, cell_id: str) -> list[ResultRow]:
    """The stored rows of one cell, in the order a sweep measures them; none where there is no such cell."""
    folder = experiment_dir / cell_id
    points = [point for point in folder.glob("c*-r*") if _POINT_NAME.fullmatch(point.name)]
    return sorted(map(read_row, points), key=lambda row: (row.repeat, row.concurrency))


def digest(row: ResultRow) -> str:
    """What tells a row from any other, also from another try of the same point."""
    return hashlib.sha256(_json(row.to_flat()).encode()).hexdigest()[:16]


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
    """Tidy what a killed `write_point` left: a point that was whole is put in its place, the rest is removed.

    Returns the folders removed. Call it before a sweep starts, never while another process writes into the experiment.
    """
    if not experiment_dir.is_dir():
        return []

    def worth(partial: Path) -> float | None:
        try:
            status = read_row(partial).status
            return (partial / RESULT_FILE).stat().st_mtime + (1e12 if status is Status.OK else 0)
        except ValueError:  # half-written
            return None

    return recover((cell for cell in sorted(experiment_dir.iterdir()) if cell.is_dir()), worth)


_DELETE_HINT = "delete the point's folder and run the experiment again"
_ACCEPTS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int64": (int,),
    "Int64": (int, type(None)),
    "float64": (float, int, type(None)),
}
_TYPES = [  # what each column's values may be; `type(x) in` a tuple is what makes a thousand rows quick
    (name, (*_ACCEPTS[dtype], type(None)) if name in _NULLABLE_TEXT else _ACCEPTS[dtype])
    for name, dtype in COLUMN_DTYPES.items()
]


def _points(experiment_dir: Path) -> Iterator[Path]:
    for cell in sorted(experiment_dir.iterdir()):
        if cell.is_dir():
            yield from (point for point in cell.iterdir() if _POINT_NAME.fullmatch(point.name))


def _read_flat(point: Path) -> dict[str, Any]:
    path = point / RESULT_FILE
    stored = _read_json(path)
    try:
        flat = ResultRow.from_flat(stored).to_flat()
        _check_types(flat)
        _check_place(flat, point)
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
    for name, accepted in _TYPES:
        if type(flat[name]) not in accepted:
            raise ValueError(f"{name} is {flat[name]!r}, which is no {COLUMN_DTYPES[name]}")


def _check_place(flat: dict[str, Any], point: Path) -> None:
    """A folder that was copied or renamed holds another point's row, which would count twice."""
    place = _POINT_NAME.fullmatch(point.name)  # not that of a partial folder
    said = (flat["cell_id"], flat["concurrency"], flat["repeat"])
    if place and said != (point.parent.name, int(place[1]), int(place[2])):
        raise ValueError(f"it is the row of {said[0]}/c{said[1]}-r{said[2]}")


def _json_ready(value: Any) -> Any:
    """Numpy scalars as Python numbers and non-finite numbers as None, at any depth."""
    if isinstance(value, dict):
        return {str(key): _json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_ready(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(value: dict[str, Any]) -> str:
    return json.dumps(_json_ready(value), indent=1, allow_nan=False) + "\n"


def _encode_requests(requests: Sequence[RequestRecord]) -> bytes:
    schema = _request_schema()
    # column by column: dataclasses.asdict would copy every chunk list
    return _parquet({name: [getattr(request, name) for request in requests] for name in schema.names}, schema)


def _parquet(columns: Mapping[str, Sequence[Any]], schema: pa.Schema | None = None) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(columns), schema=schema), buffer)
    return bytes(buffer.getvalue())


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
