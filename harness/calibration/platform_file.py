"""The platform file of a calibrated machine, as YAML that `conf/platform` could have held."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import yaml

from harness.schema import NativeCosts, Scalar, ServingCosts
from harness.sysinfo import machine


@dataclass(frozen=True, slots=True)
class Drift:
    """Seconds of the reference loop, as often as it was timed."""

    paces_s: list[float]

    @property
    def words(self) -> str:
        first, last, low, high = (
            f"{1e3 * s:.2f} ms" for s in (self.paces_s[0], self.paces_s[-1], min(self.paces_s), max(self.paces_s))
        )
        return f"the reference loop took {first} at the start, {last} at the end, {low} to {high} between"


def platform_yaml(
    name: str, num_cpus: float, costs: Mapping[str, NativeCosts], serving: ServingCosts, drift: Drift
) -> str:
    """The whole file."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    head = (
        f"# {platform.node()} ({_processor()}), timed by python -m harness.calibrate at {now}.\n"
        f"# While it ran, {drift.words}.\n"
        "# For engine=simulated_native. Seconds; see NativeCosts and ServingCosts in harness/schema/platform.py.\n"
    )
    body = {
        "name": name,
        "num_cpus": num_cpus,
        "serving": _scalars(serving),
        "native": {key: _scalars(value) | _rates(value) for key, value in costs.items()},
    }
    return head + yaml.safe_dump(body, sort_keys=False, width=1000)


def _scalars(costs: NativeCosts | ServingCosts) -> dict[str, Any]:
    named = {f.name: getattr(costs, f.name) for f in fields(costs)}
    return {key: asdict(value) for key, value in named.items() if isinstance(value, Scalar) and value.value is not None}


def _rates(costs: NativeCosts) -> dict[str, Any]:
    if not costs.miss_rates:
        return {}
    rounded = [[float(f"{number:.5g}") for number in entry] for entry in costs.miss_rates]
    return {"miss_rates": rounded, "miss_source": costs.miss_source}


def _processor() -> str:
    return str(machine().get("cpu_model") or platform.machine())
