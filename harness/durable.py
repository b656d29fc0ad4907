"""Folders on disk that are there whole or not at all, whatever ends the process or the machine.

A folder is written under a hidden name that ends in PARTIAL and renamed once everything in it has reached the disk. Its
`last` file is written when the others have: a partial folder that has it lacks nothing but the rename, and `recover`
gives it that.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PARTIAL = ".partial"
_DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_ID = 12  # characters


class StoreError(RuntimeError):
    """What was measured cannot be stored: a full or broken disk. The message is one line."""


def write_folder(final: Path, files: Mapping[str, bytes], last: str) -> None:
    """Make the folder `final` of these files, `last` the last of them; one that lies there is replaced.

    Raises StoreError where the disk refuses (nothing of the new folder is left then, and the old one stays) and
    FileExistsError where another process made `final` meanwhile.
    """
    partial = _partial_name(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        others = [_written(partial / name, data) for name, data in files.items() if name != last]
        _sync([*others, partial])
        _sync([_written(partial / last, files[last]), partial])
        _put_in_place(partial, final)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, FileExistsError):
            raise StoreError(
                f"{final}: {error.strerror or error}; this point is not stored, those before it are: "
                "mend the disk and run the same command again"
            ) from error
        raise


def recover(parents: Iterable[Path], rank: Callable[[Path], float | None]) -> list[Path]:
    """Tidy what a process left that was killed in `write_folder`; never while another writes there.

    rank: the worth of a partial folder, None for one that is not whole. The best whole one of a name moves to that
    name if nothing lies there; all others are removed. Returns the removed ones.
    """
    removed = []
    for parent in parents:
        whole: dict[Path, list[tuple[float, Path]]] = {}
        for leftover in sorted(parent.glob(f".*{PARTIAL}")):
            worth = rank(leftover)
            if worth is not None:
                whole.setdefault(_final_name(leftover), []).append((worth, leftover))
        for final, found in whole.items():
            if not final.exists():
                os.rename(max(found)[1], final)
                _sync([parent])
        for leftover in sorted(parent.glob(f".*{PARTIAL}")):
            shutil.rmtree(leftover)
            removed.append(leftover)
    return removed


def disk_trouble(error: BaseException | None) -> OSError | None:
    """The full, read-only or broken disk behind an error, if there is one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_TROUBLE:
            return error
        error = error.__cause__ or error.__context__
    return None


def _partial_name(final: Path) -> Path:
    return final.parent / f".{final.name}.{uuid.uuid4().hex[:_ID]}{PARTIAL}"


def _final_name(partial: Path) -> Path:
    return partial.parent / partial.name[1 : -len(PARTIAL) - _ID - 1]


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _sync(paths: list[Path]) -> None:
    """Wait until these files and folders are on the disk. At once: the disk commits them together, five times as fast
    as one after the other."""
    with ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(_fsync, paths))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(partial: Path, final: Path) -> None:
    """Rename `partial` to `final`; what lies there moves aside first, and back if that fails."""
    replaced = None
    if final.exists():
        replaced = _partial_name(final)
        os.rename(final, replaced)
    try:
        os.rename(partial, final)
    except OSError as error:  # a folder cannot be renamed onto one with files: another writer was first
        if final.exists():
            raise FileExistsError(f"{final} was written by another process meanwhile") from error
        if replaced is not None:
            os.rename(replaced, final)
        raise
    _sync([final.parent, final.parent.parent])  # the second for a cell's first point
    if replaced is not None:
        shutil.rmtree(replaced)
