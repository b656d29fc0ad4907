"""Reading data files line by line, or as one JSON list, such that what is malformed is named with file and place."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


class Malformed(ValueError):
    """A file that does not say what it should: `FILE line N: what`, in one line."""

    def __init__(self, path: Path, number: int, what: str, *, unit: str = "line") -> None:
        super().__init__(f"{path} {unit} {number}: {what}")


_MOST = 1 << 53  # what numbers of JSON are exact to
_OWN = "example:"
_DATA = Path(__file__).resolve().parent / "data"


def data_file(name: str) -> Path:
    """The file a config names: a path (`~` allowed), or `example:NAME` for one that comes with this package.

    Raises ValueError for an example that does not exist.
    """
    if not name.startswith(_OWN):
        return Path(name).expanduser()
    path = _DATA / name.removeprefix(_OWN)
    if not path.is_file():
        have = ", ".join(sorted(f"{_OWN}{file.name}" for file in _DATA.iterdir()))
        raise ValueError(f"{name}: no such example; there is {have}")
    return path


def csv_rows(path: Path, file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of an open CSV file; the header is line 1, and comes first, as its names with None.

    Raises ValueError naming the file, Malformed.
    """
    reader = csv.DictReader(file)
    try:
        yield 1, dict.fromkeys(reader.fieldnames or ())
        for row in reader:
            yield reader.line_num, row
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text; a CSV file was expected") from error
    except csv.Error as error:
        raise Malformed(path, reader.line_num + 1, f"not CSV: {error}") from error


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of a JSONL file; blank lines are skipped. Raises ValueError, Malformed."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _object(line, path, number)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a file that exists") from error


def json_list(path: Path) -> list[Any]:
    """The elements of a file that is one JSON list, or JSONL. Raises ValueError, Malformed with the line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; name a file that exists") from error
    if not data.lstrip().startswith(b"["):
        return [record for _, record in json_lines(path)]
    try:
        found = json.loads(data)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise Malformed(path, error.lineno, f"not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand lists in each other
        raise ValueError(f"{path}: not JSON that can be read: {error}") from error
    assert isinstance(found, list)
    return found


def whole_number(value: object, name: str, path: Path, line: int, *, least: int) -> int:
    """`value` (a number or its text) as a whole number of at least `least`. Raises Malformed."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= _MOST:
        raise Malformed(path, line, f"{name} is {value!r:.40}, which is no whole number of at least {least}")
    return number


def _object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except RecursionError as error:
        raise Malformed(path, number, "not JSON that can be read: it is nested too deeply") from error
    except ValueError as error:  # UnicodeDecodeError is one too
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8 text"
        raise Malformed(path, number, f"not JSON: {detail}") from error
    if not isinstance(found, dict):
        raise Malformed(path, number, f"a JSON object was expected, not {type(found).__name__}")
    return found
