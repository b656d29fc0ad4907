"""Who may import whom, read from the sources: the layers of the design, and what stays light to import."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"harness": ROOT, "workloads": ROOT, "analysis": ROOT, "hisparse_kernels": ROOT / "kernels"}

# Low to high; a module imports from its own layer and from lower ones. The longest matching prefix counts.
LAYERS: list[set[str]] = [
    {"harness", "harness.guard", "harness.interrupts", "harness.records", "harness.schema", "harness.units"},
    {
        "harness.model_rules",
        "harness.model_sizes",
        "harness.native_rules",
        "harness.serving_rules",
        "harness.simulated_rules",
        "harness.bounds",
        "harness.offline_rules",
        "harness.validate",
        "harness.identity",
        "harness.load_rules",
        "harness.overrides",
        "harness.replay_rules",
        "harness.fetch",
        "harness.gguf_to_hf",
        "harness.hf_config",
        "harness.interrupts",
        "harness.weights",
        "hisparse_kernels",
        "workloads",
    },
    {
        "harness.config",
        "harness.durable",
        "harness.engine",
        "harness.lease",
        "harness.loadgen",
        "harness.lock",
        "harness.node_check",
        "harness.patience",
        "harness.store",
        "harness.sysinfo",
        "harness.tracked",
        "harness.tracking",
        "harness.write_behind",
    },
    {"harness.offline", "harness.simulation"},
    {"harness.instances"},
    {"harness.calibration"},
    {
        "harness.actors",
        "harness.cluster",
        "harness.display",
        "harness.experiment",
        "harness.fit",
        "harness.loads",
        "harness.measured",
        "harness.placement",
        "harness.plan_launch",
        "harness.plan_view",
        "harness.recorder",
        "harness.served",
        "harness.side_by_side",
        "harness.sweep",
        "analysis",
    },
    {
        "harness.__main__",
        "harness.calibrate",
        "harness.plan",
        "harness.plan_figure",
        "harness.published_lint",
        "harness.sensitivity",
        "harness.sweep_bench",
        "workloads.__main__",
    },
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


@functools.cache
def _modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def _imports(module: str) -> frozenset[str]:
    """Everything a module imports, anywhere in it: `from a import b` is a.b where that is a module, else a."""
    found = set()
    for node in ast.walk(ast.parse(_modules()[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module}: write absolute imports"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in _modules() else node.module for name in whole}
    return frozenset(found - {module})


def _ours(module: str) -> set[str]:
    return {name for name in _imports(module) if name.split(".")[0] in PACKAGES}


def _foreign(module: str) -> set[str]:
    return {name.split(".")[0] for name in _imports(module)} - set(PACKAGES)


def _within(prefix: str) -> list[str]:
    return [name for name in _modules() if name == prefix or name.startswith(f"{prefix}.")]


def _place(module: str) -> str:
    """The entry of LAYERS that a module falls under."""
    parts = module.split(".")
    prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    place = next((prefix for prefix in prefixes if prefix in LEVEL), "")
    assert place and (place != "harness" or module == "harness"), f"{module} has no layer: give it one in LAYERS"
    return place


def test_the_reader_sees_imports() -> None:
    assert {"harness.schema", "harness.store", "harness.units"} <= set(_modules())
    assert "ray" in _foreign("harness.cluster.calls")  # inside functions too
    assert "harness.store" in _imports("analysis.frame")  # from harness import store
    assert "harness.loadgen.together" in _imports("harness.cluster.loadgen")


def test_every_layer_entry_exists() -> None:
    assert set(LEVEL) <= set(_modules())


@pytest.mark.parametrize("module", sorted(_modules()))
def test_imports_go_downwards(module: str) -> None:
    for name in sorted(_ours(module)):
        assert LEVEL[_place(name)] <= LEVEL[_place(module)], f"{module} imports {name}, which is above it"


def test_there_are_no_cycles() -> None:
    """Between modules, and between the places of the layer list (a package counts as one)."""
    modules = {module: _ours(module) for module in _modules()}
    places: dict[str, set[str]] = {}
    for module, names in modules.items():
        place = _place(module)
        places.setdefault(place, set()).update({_place(name) for name in names} - {place})
    for graph in (modules, places):
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            pytest.fail(f"imports go in a circle: {' -> '.join(error.args[1])}")


def test_only_the_cluster_imports_ray() -> None:
    importers = {module for module in _modules() if "ray" in _foreign(module)}
    assert importers and importers <= set(_within("harness.cluster"))


def test_the_load_generator_speaks_http_only() -> None:
    for module in _within("harness.loadgen"):
        beyond = {name for name in _ours(module) if name.split(".")[:2] != ["harness", "loadgen"]}
        beyond = {name for name in beyond if name.split(".")[0] != "workloads"}
        assert beyond <= {"harness.records", "harness.schema", "harness.units", "hisparse_kernels.build"}, module
        assert not _foreign(module) & {"torch", "ray", "transformers"}, module


def test_analysis_reads_results_only() -> None:
    allowed = {"harness.records", "harness.store", "harness.units"}
    allowed |= {"harness.loadgen.metrics", "harness.loadgen.bootstrap"}  # what the measures mean
    libraries = {"IPython", "jinja2", "matplotlib", "numpy", "pandas", "rich", "seaborn"}
    for module in _within("analysis"):
        assert {name for name in _ours(module) if not name.startswith("analysis")} <= allowed, module
        assert _foreign(module) - set(sys.stdlib_module_names) <= libraries, module


def test_kernels_import_nothing_of_ours() -> None:
    for module in _within("hisparse_kernels"):
        assert all(name.startswith("hisparse_kernels") for name in _ours(module)), module


def test_the_scheduler_knows_no_clock_and_no_torch() -> None:
    pure = ("harness.engine.scheduler", "harness.engine.admission", "harness.engine.footprint")
    benches = {name for name in _within("harness.simulation") if name.startswith("harness.simulation.bench")}
    for module in {*pure, *_within("harness.simulation")} - benches:
        assert not _foreign(module) & {"torch", "time", "datetime", "asyncio", "threading"}, module


HEAVY = ("torch", "ray", "transformers", "wandb")


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("harness.config harness.experiment harness.plan_view harness.__main__", HEAVY),
        ("analysis analysis.draw", HEAVY),
        ("harness.loadgen.run workloads", (*HEAVY, "tvm_ffi")),
    ],
)
def test_importing_stays_light(modules: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {', '.join(modules.split())}; print(*(m for m in {absent!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []
