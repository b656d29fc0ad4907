"""What runs where: compiled, forced, or the reference with one warning; and what a failed build says."""

import os
import subprocess
import sys

import hisparse_kernels as hk
import pytest
import torch
from hisparse_kernels import backends, build, gpu_check


def test_the_compiled_kernels_run_by_default():
    assert hk.backend() == "cpu"
    with hk.use_backend("reference"):
        assert hk.backend() == hk.backend("cuda") == "reference"
        with hk.use_backend("shared"):
            assert hk.backend() == "cpu-shared"
        assert hk.backend() == "reference"
    assert hk.backend() == "cpu"


def run_python(code, **environment):
    command = [sys.executable, "-W", "always", "-c", code]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_the_environment_forces_a_backend():
    code = "import hisparse_kernels as hk; print(hk.backend())"
    assert run_python(code, HISPARSE_KERNELS="reference").stdout == "reference\n"
    wrong = run_python(code, HISPARSE_KERNELS="fast")
    assert "HISPARSE_KERNELS=fast is none of auto, reference, shared" in wrong.stderr


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"PATH": "/nowhere"}, "ninja is not on PATH: pip install ninja"),
        ({"CXX": "no-such-compiler"}, "no-such-compiler is not on PATH: install g++"),
    ],
)
def test_without_a_tool_the_reference_runs_and_says_so_once(environment, reason):
    if "PATH" in environment and os.path.exists(os.path.join(os.path.dirname(sys.executable), "ninja")):
        pytest.skip("ninja lies beside this Python")
    code = """
import torch, hisparse_kernels as hk
for _ in range(2):
    hk.gather(torch.zeros(2, 3), torch.zeros(1, 1, dtype=torch.int32))
    with hk.use_backend("auto"):
        hk.backend()
print(hk.backend())
"""
    done = run_python(code, **environment)
    assert done.stdout == "reference\n", done.stderr
    assert done.stderr.count("runs its torch reference on cpu") == 1
    assert reason in done.stderr


def test_a_source_that_does_not_compile_is_one_line():
    with pytest.raises(
        build.BuildUnavailable, match=r"^the kernels do not compile: .*error.*\(all of it: .*error.log\)$"
    ):
        build.load("cpu", "SEEDED_BUG=this is no number")


def test_a_library_alone_is_built_once_and_says_why_not(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path)
    source = tmp_path / "seven.cpp"
    source.write_text('extern "C" int seven() { return 7; }')
    assert build.load_alone("seven", source).seven() == 7
    (built,) = tmp_path.glob("seven-*/*")  # and nothing of the build
    made = built.stat().st_mtime_ns
    assert build.load_alone("seven", source).seven() == 7
    assert built.stat().st_mtime_ns == made
    source.write_text("int seven() { return none; }")
    with pytest.raises(build.BuildUnavailable, match=r"^seven.cpp does not compile: .*error"):
        build.load_alone("seven", source)
    monkeypatch.setattr(build, "cache_folder", lambda: source)  # a file
    with pytest.raises(build.BuildUnavailable, match="eight cannot be built or loaded"):
        build.load_alone("eight", source)


def test_without_cuda_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(build.Path, "is_file", lambda self: False)
    with pytest.raises(build.BuildUnavailable, match="no CUDA toolkit: install nvcc"):
        build.cuda_home()


def test_a_block_has_whole_warps():
    with (
        pytest.raises(ValueError, match="block_threads=40 is not a multiple of 32"),
        hk.use_backend("shared", block_threads=40),
    ):
        pass


def test_an_installed_package_builds_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "__file__", str(tmp_path / "site-packages" / "hisparse_kernels" / "build.py"))
    monkeypatch.setenv("HISPARSE_CACHE", str(tmp_path / "cache"))
    assert build.cache_folder() == tmp_path / "cache" / "kernels"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_check_says_that_there_is_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert gpu_check.main() == 2
    assert "no GPU here" in capsys.readouterr().out


def test_choices_are_those_of_the_message():
    with pytest.raises(ValueError, match="fast is none of auto, reference, shared"), hk.use_backend("fast"):
        pass
    assert backends.CHOICES == ("auto", "reference", "shared")
