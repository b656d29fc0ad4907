"""The CUDA source compiles for every architecture, without a GPU, and no kernel spills registers."""

import shutil

import pytest
from hisparse_kernels import build

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")]


@pytest.mark.parametrize("architecture", build.CUDA_ARCHITECTURES)
def test_no_kernel_spills(architecture, tmp_path, capsys):
    found = build.cuda_resources(architecture, tmp_path)
    with capsys.disabled():
        print(f"\n{architecture:34} registers  static shared bytes")
        for kernel in found:
            print(f"  {kernel.kernel:32} {kernel.registers:9}  {kernel.shared:19}")
    assert {k.kernel.split("<")[0].removeprefix("cuda::") for k in found} == {
        "match_kernel",
        "fetch_kernel",
        "replay_kernel",
        "append_kernel",
        "copy_kernel",
        "avsg_kernel",
    }
    assert not [k for k in found if k.spilled], "registers are spilled"


def test_the_module_links_and_loads():
    module = build.load("cuda")
    assert module.scratch_ints(4, 2048, 4096) == 2 * 4 * 2048
    assert module.scratch_ints(1, 8192, 65536) == 2 * 8192 + 65536


def test_a_report_with_spills_is_read():
    report = """ptxas info : Compiling entry function '_Z1fv' for 'sm_90'
ptxas info    : Function properties for _Z1fv
    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 64 bytes smem"""
    assert build._parse_resources(report) == [build.Resources("f", 32, 16, 64)]
