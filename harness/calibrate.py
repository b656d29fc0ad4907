"""Time the native engine's terms on this machine: python -m harness.calibrate [EXPERIMENT ...] [--out FILE]

For every kind of cell of the experiments (model, selector, offload system, B): decode steps against batch and context,
prompt chunks, record copies, and miss rates by replay of recorded selections; once, what the server adds. The platform
file that it writes lets engine=simulated predict these experiments here. Nothing is fitted to sweeps; run it on an idle
machine, close in time to what it is compared with: a reference loop, timed at the start and the end, says how the
machine's speed drifted meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from harness.config import load_cells
from harness.schema import Config, Device, EngineKind
from harness.validate import ConfigError

EXPERIMENTS = ("quickstart", "fig8_small")
OUT = Path("calibrated/platform/this_machine.yaml")


def main(argv: list[str] | None = None) -> int:
    """0, or 2 with one line that says what was wrong."""
    parser = argparse.ArgumentParser(prog="python -m harness.calibrate", description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"default: {' '.join(EXPERIMENTS)}")
    parser.add_argument("--out", type=Path, default=OUT, help="the platform file (default: %(default)s)")
    options = parser.parse_args(argv)
    try:
        cells = [cell for name in options.experiments or EXPERIMENTS for cell in _cells(name)]
        _check(options.out)
        os.environ.update({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"})  # as the server's
        text = _calibrate(cells, options.out.stem)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    except (ConfigError, ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(f"written: {options.out}")
    for name in options.experiments or EXPERIMENTS:
        print(
            f"predict: python -m harness --config-dir {options.out.parent.parent} experiment={name} "
            f"engine=simulated_native platform={options.out.stem} name={name}_predicted"
        )
    return 0


def _cells(name: str) -> list[Config]:
    cells = load_cells([f"experiment={name}", "tracker=none"])
    for cell in cells:
        if cell.engine.kind is not EngineKind.native:
            raise ConfigError(f"experiment={name} has engine={cell.engine.kind.value}: only the native engine is timed")
        if cell.platform.device is not Device.cpu:
            raise ConfigError(f"experiment={name} has platform.device=cuda: calibration times the CPU alone")
    return cells


def _check(out: Path) -> None:
    if out.suffix != ".yaml" or out.parent.name != "platform":
        raise ConfigError(f"--out {out}: name a file FOLDER/platform/NAME.yaml, so that --config-dir FOLDER finds it")


def _calibrate(cells: list[Config], name: str) -> str:
    import torch

    from harness.calibration.cells import kinds_of, measure_kinds, measure_serving
    from harness.calibration.platform_file import Drift, platform_yaml
    from harness.calibration.reference_loop import reference_s

    torch.set_num_threads(max(1, int(cells[0].platform.num_cpus)))
    begin, before = time.perf_counter(), reference_s()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - begin:5.0f} s  {text}", flush=True)

    costs, paces = measure_kinds(kinds_of(cells), say)
    serving = measure_serving(cells[0], say)
    drift = Drift([before, *paces, reference_s()])
    say(f"done; {drift.words}")
    return platform_yaml(name, cells[0].platform.num_cpus, costs, serving, drift)


if __name__ == "__main__":
    sys.exit(main())
