"""Compile and load the kernels: `load("cpu")` and `load("cuda")`, once per source, flags and kind of CPU.

So do others with C++ of their own: `load_beside` the kernels, `load_alone` without them (and without torch).
Built modules go to `build/hisparse_kernels/` of the checkout, or to `$HISPARSE_CACHE/kernels` (default
`~/.cache/hisparse-harness/kernels`) where the package is installed; the first build takes some 10 seconds.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = Path(__file__).parent / "csrc"
CUDA_ARCHITECTURES = ("sm_90", "sm_100")
_FILES = {
    "cpu": (SOURCES / "cpu.cpp", SOURCES / "run_cpu.cpp", SOURCES / "avsg_cpu.cpp"),
    "cuda": (SOURCES / "cuda.cu", SOURCES / "avsg_cuda.cu"),
}


class BuildUnavailable(RuntimeError):
    """The kernels cannot be compiled here; the message is one line that says what is missing."""


@functools.cache
def load(target: str, *defines: str, flags: tuple[str, ...] = ()) -> Any:
    """The tvm-ffi module of `target` ("cpu" or "cuda"), compiled unless it is in the cache.

    defines: macros such as "SEEDED_BUG=3"; flags: more compiler flags. Raises BuildUnavailable.
    """
    macros = [f"-D{define}" for define in defines] + list(flags)
    return _load(target, f"hisparse_{target}", _FILES[target], macros, (SOURCES,))


@functools.cache
def load_beside(name: str, *sources: Path) -> Any:
    """The tvm-ffi module `name` of another package's C++ files, which may include this package's headers.

    It is linked with the CPU operations of `run_cpu.h`. Raises BuildUnavailable.
    """
    folders = (SOURCES, *sorted({source.parent for source in sources}))
    return _load("cpu", name, (*sources, SOURCES / "run_cpu.cpp"), ["-O3", f"-I{SOURCES}"], folders)


def load_alone(name: str, source: Path) -> ctypes.PyDLL:
    """The library `name` of one C++ file without dependencies, for ctypes; calls keep the interpreter's lock.

    It takes a second or two, where it is not in the cache. Raises BuildUnavailable.
    """
    command = [_compiler(), "-std=c++17", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread", "-o"]
    try:
        text = source.read_bytes()
        key = hashlib.sha256(f"{platform.machine()} {_compiler_version()} {command}".encode() + text).hexdigest()[:16]
        folder = cache_folder() / f"{name}-{key}"
        built = folder / f"{name}.so"
        if not built.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:  # others may be building it too
                made = Path(scratch) / built.name
                done = subprocess.run([*command, str(made), str(source)], capture_output=True, text=True, check=False)
                if done.returncode:
                    raise BuildUnavailable(_first_error(done.stdout + done.stderr, f"{source.name} does not compile"))
                made.replace(built)
        return ctypes.PyDLL(str(built))
    except OSError as error:
        raise BuildUnavailable(f"{name} cannot be built or loaded: {error}") from error


def _load(target: str, name: str, files: tuple[Path, ...], flags: list[str], folders: tuple[Path, ...]) -> Any:
    try:
        import tvm_ffi.cpp
    except ImportError as error:
        raise BuildUnavailable("apache-tvm-ffi is not installed: pip install apache-tvm-ffi") from error
    ninja = _tool("ninja", "pip install ninja, or put the environment's bin folder on PATH")
    if target == "cuda":
        home = cuda_home()
        environment = {"CUDA_HOME": str(home), "TVM_FFI_CUDA_ARCH_LIST": "9.0 10.0"}
        arguments: dict[str, Any] = {"extra_cuda_cflags": ["-O3", "-lineinfo", *flags], "backend": "cuda"}
    else:
        environment = {"CXX": _compiler()}
        # -march=native is safe: the folder's name holds the CPU's features.
        arguments = {"extra_cflags": ["-fopenmp", "-march=native", *flags], "extra_ldflags": ["-fopenmp"]}
    environment["PATH"] = f"{Path(ninja).parent}{os.pathsep}{os.environ['PATH']}"
    stem = target if name == f"hisparse_{target}" else name
    folder = cache_folder() / f"{stem}-{_key(target, flags, folders)}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(path) for path in files]
    saved = dict(os.environ)
    os.environ.update(environment)
    try:
        return tvm_ffi.cpp.load(name, sources=paths, build_directory=str(folder), **arguments)
    except RuntimeError as error:
        (folder / "error.log").write_text(str(error))
        raise BuildUnavailable(f"{_first_error(str(error))} (all of it: {folder / 'error.log'})") from error
    finally:
        os.environ.clear()
        os.environ.update(saved)


def cache_folder() -> Path:
    """Where built modules are kept."""
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file() and os.access(checkout, os.W_OK):
        return checkout / "build" / "hisparse_kernels"
    root = os.environ.get("HISPARSE_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "hisparse-harness") / "kernels"


def cuda_home() -> Path:
    """The CUDA toolkit: $CUDA_HOME, /usr/local/cuda, or where nvcc lies. Raises BuildUnavailable."""
    found = shutil.which("nvcc")
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda", found and Path(found).resolve().parents[1]):
        if home and (Path(home) / "bin" / "nvcc").is_file():
            return Path(home)
    raise BuildUnavailable("no CUDA toolkit: install nvcc 12.8 or later, or set CUDA_HOME")


class Resources(NamedTuple):
    """What the compiler says a CUDA kernel takes."""

    kernel: str
    registers: int
    spilled: int  # bytes of spill stores and loads
    shared: int  # static bytes


def cuda_resources(architecture: str, folder: Path) -> list[Resources]:
    """Compile the CUDA sources to cubins (no GPU needed) and return each kernel's resources."""
    from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

    command = [str(cuda_home() / "bin" / "nvcc"), "-cubin", f"-arch={architecture}", "-std=c++17", "-O3"]
    command += ["-Xptxas=-v", f"-I{find_include_path()}", f"-I{find_dlpack_include_path()}"]
    found = []
    for source in _FILES["cuda"]:
        output = folder / f"{source.stem}-{architecture}.cubin"
        result = subprocess.run([*command, str(source), "-o", str(output)], capture_output=True, text=True, check=False)
        if result.returncode:
            raise BuildUnavailable(_first_error(result.stdout + result.stderr))
        found += _parse_resources(result.stderr)
    return found


def _parse_resources(report: str) -> list[Resources]:
    found = []
    for block in re.split(r"Compiling entry function '", report)[1:]:
        symbol = block.split("'", 1)[0]
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", block)]
        registers = re.search(r"Used (\d+) registers", block)
        shared = re.search(r"(\d+) bytes smem", block)
        assert registers, f"the compiler's report on {symbol} has changed its form"
        name = subprocess.run(["c++filt", symbol], capture_output=True, text=True, check=False).stdout.strip()
        name = re.sub(r"^void |\(.*", "", name.replace("hisparse::", ""))
        found.append(Resources(name or symbol, int(registers[1]), sum(spills), int(shared[1]) if shared else 0))
    return found


def _compiler() -> str:
    name = os.environ.get("CXX", "g++")
    return _tool(name, "install g++, or set CXX to a C++17 compiler with OpenMP")


def _tool(name: str, advice: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise BuildUnavailable(f"{name} is not on PATH: {advice}")
    return found


def _key(target: str, flags: list[str], folders: tuple[Path, ...]) -> str:
    """A hash of all that the built module depends on."""
    import tvm_ffi

    digest = hashlib.sha256(f"{tvm_ffi.__version__} {platform.python_version()} {flags}".encode())
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        digest.update(path.name.encode() + path.read_bytes())
    if target == "cuda":
        digest.update(str(cuda_home().resolve()).encode())
    else:
        digest.update(_compiler_version().encode() + _cpu_features().encode())
    return digest.hexdigest()[:16]


@functools.cache
def _compiler_version() -> str:
    return subprocess.run([_compiler(), "--version"], capture_output=True, text=True, check=False).stdout


@functools.cache
def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def _first_error(output: str, said: str = "the kernels do not compile") -> str:
    lines = [line for line in output.splitlines() if re.search(r"\b(error|fatal|undefined reference)\b", line)]
    return f"{said}: {(lines or output.splitlines() or ['no output'])[0].strip()}"
