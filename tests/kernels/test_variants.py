"""The shared source in builds that make its mistakes show: backwards, under ASan/UBSan, with real threads (TSan)."""

import shutil
import subprocess

import pytest
from hisparse_kernels import build

SOURCE = build.SOURCES / "variants.cpp"
VARIANTS = {
    "forwards": [],
    "backwards": ["-DHISPARSE_REVERSED"],
    "asan-ubsan": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "backwards-asan": ["-DHISPARSE_REVERSED", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-DHISPARSE_THREADS", "-fsanitize=thread", "-pthread"],
}
pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")]


def run_variant(flags, tmp_path):
    program = tmp_path / "variant"
    command = ["g++", "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags, str(SOURCE), "-o", str(program)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=1400)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_variant_equals_the_rules(name, tmp_path):
    result = run_variant(VARIANTS[name], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == "equal\n"


def test_a_race_is_found_by_real_threads(tmp_path):
    """Bug 5 leaves out a barrier: TSan must report it, or the check above shows nothing."""
    result = run_variant([*VARIANTS["tsan"], "-DSEEDED_BUG=5"], tmp_path)
    assert result.returncode != 0
    assert "data race" in result.stderr or "difference" in result.stdout


def test_a_plain_store_in_place_of_the_atomic_is_found(tmp_path):
    """Bug 1 lets the last of several duplicates stand for all."""
    assert run_variant(["-DSEEDED_BUG=1"], tmp_path).returncode == 1
