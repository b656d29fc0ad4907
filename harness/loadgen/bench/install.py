"""Virtual environments of the clients we are compared with, each its own, made once under one folder."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

_GUIDELLM = ["guidellm==0.8.1"]
_AIPERF = ["aiperf==0.13.0"]
_SGLANG = ["sglang==0.5.23"]
# What its bench client imports beside what this project has: SGLang's own list is a CUDA server's, of many GB.
_SGLANG_NEEDS = ["datasets==5.2.0", "msgspec==0.23.0", "pybase64==1.5.1", "pyzmq>=27"]


def python_of(name: str, folder: Path) -> Path:
    """The interpreter with peer `name` ("sglang", "guidellm", "aiperf"), installed from PyPI if it is not there.

    Raises subprocess.CalledProcessError when it cannot be installed.
    """
    venv = folder / name
    python, ready = venv / "bin" / "python", venv / ".ready"
    if ready.exists():
        return python
    print(f"installing {name} into {venv}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    if name == "sglang":
        _borrow_packages(python)
        _pip(python, "--no-deps", *_SGLANG)
        _pip(python, *_SGLANG_NEEDS)
    else:
        _pip(python, *(_GUIDELLM if name == "guidellm" else _AIPERF))
    ready.touch()
    return python


def _borrow_packages(python: Path) -> None:
    """Let `python` import what is installed for this interpreter."""
    ask = "import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"
    done = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    (Path(json.loads(done.stdout)) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _pip(python: Path, *what: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def write_tokenizer(folder: Path, words: list[str]) -> Path:
    """A tokenizer of these words, in the form that Hugging Face's loaders read: the clients want one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 1_000_000}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder
