"""The real SGLang: `make test-sglang` installs it; SGLANG_PYTHON names another interpreter that has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from install import READY
from places import HERE, ROOT

sys.path.insert(0, str(ROOT / "tests" / "e2e"))  # for sweep_process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.sglang)


@pytest.fixture(scope="session")
def sglang_python() -> str:
    named, folder = os.environ.get("SGLANG_PYTHON"), ROOT / "build" / "sglang"
    if not named and not (folder / READY).is_file():  # half installed is not installed
        pytest.skip(f"no SGLang in {folder}: run make test-sglang, or set SGLANG_PYTHON")
    return named or str(folder / "bin" / "python")


@pytest.fixture(scope="session")
def cpu_env() -> dict[str, str]:
    """What a server without a GPU needs in its environment."""
    stand_in = str(HERE / "stand_in")
    return {"PYTHONPATH": stand_in, "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with a tokenizer of bytes, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    make = f"import runpy; runpy.run_path({str(HERE / 'tiny_qwen3.py')!r})['make']({str(folder)!r})"
    subprocess.run([sys.executable, "-c", make], check=True)
    return folder
