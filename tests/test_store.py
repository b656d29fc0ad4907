"""The store: whole points or none, strict JSON, one typed table, clear errors."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import durable, store
from harness.durable import StoreError
from harness.records import MEASURES, RequestRecord, ResultRow, Status


def make_row(**changes: Any) -> ResultRow:
    fields: dict[str, Any] = {
        "experiment": "demo",
        "cell_id": "abc123",
        "engine": "native",
        "model": "glm_tiny",
        "selector": "dsa",
        "platform": "cpu_2",
        "offload": "full_kv",
        "top_k": None,
        "cache_slots": None,
        "workload": "random_ids",
        "input_len": 1024,
        "output_len": 64,
        "concurrency": 4,
        "num_requests": 8,
        "repeat": 0,
        "status": Status.OK,
        "measures": {"output_throughput": 123.5, "peak_running": 3, "h2d_bytes": 2**40},
    }
    return ResultRow(**(fields | changes))


def make_request(**changes: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "request_id": "r0",
        "worker": 0,
        "prompt_sha": "aa",
        "input_len": 1024,
        "output_len": 3,
        "scheduled_s": 0.0,
        "sent_s": 0.1,
    }
    return RequestRecord(**(fields | changes))


def write(root: Path, row: ResultRow, requests: list[RequestRecord] | None = None, **changes: Any) -> Path:
    extra: dict[str, Any] = {"config_yaml": "name: demo\n", "env": {"python": "3.11"}, "server_log": "up\n"}
    return store.write_point(root, row, requests or [], **(extra | changes))


def test_a_point_is_written_where_the_design_says_and_read_back(tmp_path: Path) -> None:
    row = make_row(top_k=64, cache_slots=128)
    point = write(tmp_path / "demo", row, config_yaml="workload: {temperature: 0.0}\n", server_log="é\ud800\n")
    assert point == store.point_dir(tmp_path / "demo", "abc123", 4, 0) == tmp_path / "demo/abc123/c4-r0"
    names = {path.name for path in point.iterdir()}
    assert names == {"config.yaml", "result.json", "requests.parquet", "server.log", "env.json"}
    assert store.read_row(point).to_flat() == row.to_flat()
    assert store.read_config(point) == {"workload": {"temperature": 0.0}}
    assert store.read_env(point) == {"python": "3.11"}
    assert (point / "server.log").read_text() == "é\\ud800\n"
    assert [p.name for p in point.parent.iterdir()] == ["c4-r0"]


def test_the_parquet_schema_has_every_field_of_a_request(tmp_path: Path) -> None:
    request = make_request(chunk_times_s=[0.2, 0.3], chunk_tokens=[1, 2], end_s=0.4, output_tokens=3, output_text="hi")
    point = write(tmp_path, make_row(), [request, make_request(request_id="r1", error="timeout")])
    table = store.read_requests(point)
    assert list(table.columns) == [f.name for f in dataclasses.fields(RequestRecord)]
    assert list(table["chunk_times_s"][0]) == [0.2, 0.3]
    assert list(table["chunk_tokens"][0]) == [1, 2]
    assert table["output_tokens"].dtype == "Int64"
    assert table["output_tokens"].isna().tolist() == [False, True]
    assert table["error"].isna().tolist() == [True, False]
    assert list(store.read_requests(point, ["error"]).columns) == ["error"]


def test_an_empty_parquet_file_is_typed(tmp_path: Path) -> None:
    empty = store.read_requests(write(tmp_path, make_row(status=Status.INFEASIBLE, reason="too long")))
    full = store.read_requests(write(tmp_path, make_row(repeat=1), [make_request(chunk_tokens=[1])]))
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == full.dtypes.to_dict()


@settings(max_examples=40)  # each example waits for the disk
@given(
    values=st.dictionaries(
        st.sampled_from([m for m in MEASURES if store.COLUMN_DTYPES[m] == "float64"]), st.none() | st.floats()
    )
)
def test_non_finite_measures_become_null_and_finite_ones_survive(
    values: dict[str, float | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    point = write(tmp_path_factory.mktemp("points"), make_row(measures=dict(values)))
    text = (point / "result.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    read = store.read_row(point).measures
    for name in MEASURES:
        value = values.get(name)
        assert read[name] == (value if value is not None and math.isfinite(value) else None)


def test_numpy_numbers_are_stored_as_plain_ones(tmp_path: Path) -> None:
    import numpy as np

    row = make_row(measures={"mean_ttft_ms": np.float32(1.5), "completed": np.int64(7)})
    point = write(tmp_path, row, env={"cores": np.int64(2), "load": [float("nan")]})
    assert store.read_row(point).measures["completed"] == 7
    assert json.loads((point / "env.json").read_text()) == {"cores": 2, "load": [None]}


def test_a_row_with_a_value_of_the_wrong_type_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="peak_running is 3.5"):
        write(tmp_path / "demo", make_row(measures={"peak_running": 3.5}))
    assert not (tmp_path / "demo").exists()


def test_an_ok_point_is_never_overwritten(tmp_path: Path) -> None:
    point = write(tmp_path, make_row())
    with pytest.raises(FileExistsError, match="c4-r0 already holds an ok point"):
        write(tmp_path, make_row(status=Status.FAILED, reason="later"))
    assert store.read_row(point).status is Status.OK


@pytest.mark.parametrize("status", [Status.FAILED, Status.INFEASIBLE, Status.INVALID])
def test_any_other_point_is_replaced(tmp_path: Path, status: Status) -> None:
    write(tmp_path, make_row(status=status, reason="broke", measures={}))
    point = write(tmp_path, make_row())
    assert store.read_row(point).status is Status.OK
    assert [path.name for path in point.parent.iterdir()] == ["c4-r0"]


def test_a_write_that_breaks_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StoreError, match="c4-r0: no space left; this point is not stored") as told:
        write(tmp_path, make_row())
    assert "\n" not in str(told.value)
    assert list((tmp_path / "abc123").iterdir()) == []


def test_two_writers_of_one_point_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_rename = os.rename

    def second(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", real_rename)
        write(tmp_path, make_row(num_requests=99))  # another process is faster
        real_rename(source, target)

    monkeypatch.setattr(os, "rename", second)
    with pytest.raises(FileExistsError, match="another process"):
        write(tmp_path, make_row())
    assert store.read_row(tmp_path / "abc123/c4-r0").num_requests == 99
    assert [path.name for path in (tmp_path / "abc123").iterdir()] == ["c4-r0"]


def test_a_full_disk_keeps_the_row_that_was_to_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, make_row(status=Status.FAILED, reason="broke", measures={}))
    real_rename = os.rename

    def full(source: Path, target: Path) -> None:
        if Path(target).name == "c4-r0" and read_status(Path(source)) is Status.OK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_rename(source, target)

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(StoreError, match="No space left on device"):
        write(tmp_path, make_row())
    assert store.read_row(tmp_path / "abc123/c4-r0").reason == "broke"
    assert [path.name for path in (tmp_path / "abc123").iterdir()] == ["c4-r0"]


def read_status(point: Path) -> Status:
    return store.read_row(point).status


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from harness import durable
root, new = Path(sys.argv[1]), Path(sys.argv[2])
files = {path.name: path.read_bytes() for path in new.iterdir()}
def count(real):
    def call(*args, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **named)
    return call
durable._fsync, os.rename, durable._written = count(durable._fsync), count(os.rename), count(durable._written)
durable.shutil.rmtree = count(durable.shutil.rmtree)
for left in range(1, int(sys.argv[3])):
    child = os.fork()
    if child == 0:
        durable.write_folder(root / str(left) / "abc123" / "c4-r0", files, last="result.json")
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(left)
"""


def test_killed_at_any_call_the_next_start_finds_the_old_point_or_the_new_one_whole(tmp_path: Path) -> None:
    """A failed row is replaced by an ok one in a process that SIGKILL ends before its n-th call, for every n."""
    most = 40
    old = write(tmp_path / "old", make_row(status=Status.FAILED, reason="broke", measures={}))
    new = write(tmp_path / "new", make_row())
    for fatal in range(1, most):
        shutil.copytree(old, tmp_path / str(fatal) / "abc123" / "c4-r0")
    command = [sys.executable, "-c", KILLED_AT, str(tmp_path), str(new), str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    survived, found = int(done.stdout), []
    assert survived < most - 1, "it was never written"
    for fatal in range(1, survived + 1):
        store.clean_partial(tmp_path / str(fatal))
        (point,) = (tmp_path / str(fatal) / "abc123").iterdir()
        row = store.read_row(point)
        assert (row.status, row.reason) in ((Status.OK, None), (Status.FAILED, "broke"))
        assert len(store.read_requests(point)) == 0 and store.read_env(point) == {"python": "3.11"}
        found.append(row.status)
    first_ok = found.index(Status.OK)
    assert found == [Status.FAILED] * first_ok + [Status.OK] * (len(found) - first_ok)
    assert 8 < first_ok < len(found) - 4  # some deaths before the new point was whole, some after


def test_a_whole_point_that_was_only_not_renamed_is_not_lost(tmp_path: Path) -> None:
    point = write(tmp_path, make_row())
    hidden = point.parent / ".c4-r0.0123456789ab.partial"
    point.rename(hidden)
    older = point.parent / ".c4-r0.ffffffffffff.partial"
    write(tmp_path, make_row(status=Status.FAILED, reason="old")).rename(older)
    assert store.clean_partial(tmp_path) == [older]
    assert store.read_row(point).status is Status.OK


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs /dev/full")
def test_a_real_enospc_is_said_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(path: Path, data: bytes) -> Path:
        Path("/dev/full").write_bytes(data)
        return path

    monkeypatch.setattr(durable, "_written", written)
    with pytest.raises(StoreError, match="No space left on device"):
        write(tmp_path, make_row())


def test_the_table_is_sorted_typed_and_complete(tmp_path: Path) -> None:
    for concurrency, repeat in [(16, 0), (2, 1), (2, 0)]:
        write(tmp_path, make_row(cell_id="b", concurrency=concurrency, repeat=repeat))
    write(tmp_path, make_row(cell_id="a", top_k=64, status=Status.FAILED, reason="died", measures={}))
    table = store.read_rows(tmp_path)
    assert list(table.columns) == [*make_row().to_flat(), "point_path"]
    found = list(zip(table["cell_id"], table["concurrency"], table["repeat"], strict=True))
    assert found == [("a", 4, 0), ("b", 2, 0), ("b", 2, 1), ("b", 16, 0)]
    assert table["top_k"].isna().tolist() == [False, True, True, True]
    assert table["h2d_bytes"].dtype == "Int64"
    assert table["h2d_bytes"][1] == 2**40
    assert table["output_throughput"].dtype == "float64"
    assert table["outputs_valid"].dtype == "bool"
    assert table["status"].tolist() == ["failed", "ok", "ok", "ok"]
    assert store.read_row(Path(table["point_path"][0])).reason == "died"


def test_a_table_without_rows_has_the_same_columns_and_types(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    empty = store.read_rows(tmp_path / "none")
    write(tmp_path / "one", make_row())
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == store.read_rows(tmp_path / "one").dtypes.to_dict()


def test_half_written_points_and_other_folders_are_ignored_and_cleaned(tmp_path: Path) -> None:
    point = write(tmp_path, make_row())
    leftover = point.parent / ".c8-r0.0123456789ab.partial"
    leftover.mkdir()
    (leftover / "result.json").write_text("{")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "report.html").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert len(store.read_rows(tmp_path)) == 1
    assert store.stored_status(tmp_path) == {("abc123", 4, 0): Status.OK}
    assert store.clean_partial(tmp_path) == [leftover]
    assert not leftover.exists()
    assert point.exists()
    assert store.clean_partial(tmp_path / "missing") == []


def test_stored_status_tells_what_is_done(tmp_path: Path) -> None:
    assert store.stored_status(tmp_path / "missing") == {}
    write(tmp_path, make_row())
    write(tmp_path, make_row(repeat=1, status=Status.FAILED, reason="died"))
    assert store.stored_status(tmp_path) == {("abc123", 4, 0): Status.OK, ("abc123", 4, 1): Status.FAILED}


def test_a_missing_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fig8: no such results folder.*python -m harness experiment=fig8"):
        store.read_rows(tmp_path / "fig8")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "a mapping was expected"),
        ('{"schema_version": 99}', "schema_version 99"),
        ('{"schema_version": 1}', "no key 'status'"),
        ('{"schema_version": 1, "status": "ok"}', "missing"),
    ],
)
def test_a_corrupt_row_is_named(tmp_path: Path, content: str, why: str) -> None:
    point = write(tmp_path, make_row())
    (point / "result.json").write_text(content)
    for read in (lambda: store.read_rows(tmp_path), lambda: store.stored_status(tmp_path)):
        with pytest.raises(ValueError, match=f"c4-r0/result.json: cannot be read .*{why}"):
            read()


def test_a_row_whose_type_was_edited_is_named(tmp_path: Path) -> None:
    point = write(tmp_path, make_row())
    flat = json.loads((point / "result.json").read_text())
    (point / "result.json").write_text(json.dumps(flat | {"concurrency": "4"}))
    with pytest.raises(ValueError, match="result.json.*concurrency is '4'"):
        store.read_row(point)


def test_other_corrupt_files_are_named(tmp_path: Path) -> None:
    point = write(tmp_path, make_row())
    (point / "requests.parquet").write_bytes(b"PAR1")
    (point / "config.yaml").write_text("a: [")
    (point / "env.json").unlink()
    with pytest.raises(ValueError, match=r"requests\.parquet: cannot be read"):
        store.read_requests(point)
    with pytest.raises(ValueError, match=r"config\.yaml: cannot be read"):
        store.read_config(point)
    with pytest.raises(ValueError, match=r"env\.json: cannot be read"):
        store.read_env(point)


def test_a_thousand_points_are_read_quickly(tmp_path: Path) -> None:
    text = (write(tmp_path, make_row()) / "result.json").read_text()
    flat = json.loads(text)
    for i in range(1, 1000):
        point = store.point_dir(tmp_path, "abc123", i % 50 + 1, i + 100)
        point.mkdir(parents=True)
        (point / "result.json").write_text(json.dumps(flat | {"repeat": i + 100, "concurrency": i % 50 + 1}))
    start = time.process_time()  # not the wall clock: the machine is shared
    table = store.read_rows(tmp_path)
    assert len(table) == 1000
    assert time.process_time() - start < 1.0


def test_folders_may_be_text_as_in_the_readme(tmp_path: Path) -> None:
    point = store.write_point(tmp_path / "exp", make_row(), [], config_yaml="a: 1\n", env={}, server_log="")
    table = store.read_rows(str(tmp_path / "exp"))
    assert store.read_row(table["point_path"][0]) == store.read_row(point)
    assert len(store.read_requests(str(point))) == 0 and store.read_config(str(point)) == {"a": 1}
