"""Many text files read as one long text, without reading all of it."""

from __future__ import annotations

import bisect
import codecs
import glob
import os
import sysconfig
from itertools import accumulate
from pathlib import Path

_BLOCK = 1 << 20  # bytes read at once when a file is checked
_NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}  # below the standard library, not part of it


def find_files(patterns: list[str]) -> list[Path]:
    """The files `patterns` (globs, `**` and `~` allowed) match, each once, in a stable order.

    No patterns: the Python standard library's own sources. Raises ValueError for a pattern that
    matches no file.
    """
    if not patterns:
        return _standard_library()
    found: set[Path] = set()
    for pattern in patterns:
        matches = glob.glob(os.path.expanduser(pattern), recursive=True)
        files = [Path(match) for match in matches if os.path.isfile(match)]
        if not files:
            raise ValueError(f"workload.files: {pattern!r} matches no file; correct the glob or remove it")
        found.update(file.resolve() for file in files)
    return sorted(found)


def _standard_library() -> list[Path]:
    root = sysconfig.get_path("stdlib")
    files: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _NOT_OURS]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    if not files:
        raise ValueError(f"no Python sources under {root}; name text files in workload.files")
    return sorted(files)


class Corpus:
    """The files end to end, addressed by byte offset; files that are not UTF-8 hold no text."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._ends = list(accumulate(file.stat().st_size for file in files))
        self._is_text: dict[int, bool] = {}

    @property
    def size(self) -> int:
        """Bytes in all files, including those that are not UTF-8."""
        return self._ends[-1]

    def read(self, offset: int, num_bytes: int) -> str | None:
        """About `num_bytes` bytes of text from `offset` on; fewer at the end of the corpus.

        Starts at the first whole character at or after `offset` and goes on into the following
        files. None when `offset` lies in a file that is not UTF-8.
        """
        index = bisect.bisect_right(self._ends, offset)
        if not self._utf8(index):
            return None
        start = offset - (self._ends[index - 1] if index else 0)
        text: list[str] = []
        while num_bytes > 0 and index < len(self._files):
            in_file = self._size_of(index) - start
            if self._utf8(index):
                text.append(self._slice(index, start, num_bytes))
                num_bytes -= in_file
            index, start = index + 1, 0
        return "".join(text)

    def _size_of(self, index: int) -> int:
        return self._ends[index] - (self._ends[index - 1] if index else 0)

    def _slice(self, index: int, start: int, num_bytes: int) -> str:
        """Whole characters of one file's bytes [start, start + num_bytes)."""
        with self._files[index].open("rb") as file:
            file.seek(start)
            data = file.read(num_bytes)
        while data and data[0] & 0xC0 == 0x80:  # the middle of a character
            data = data[1:]
        return codecs.getincrementaldecoder("utf-8")().decode(data)

    def _utf8(self, index: int) -> bool:
        """Whether a file is UTF-8 from end to end; looked at once, when first needed."""
        if index not in self._is_text:
            decoder = codecs.getincrementaldecoder("utf-8")()
            try:
                with self._files[index].open("rb") as file:
                    while block := file.read(_BLOCK):
                        decoder.decode(block)
                decoder.decode(b"", final=True)
                self._is_text[index] = True
            except UnicodeDecodeError:
                self._is_text[index] = False
        return self._is_text[index]
