"""Serve the scenarios: python -m harness.loadgen.paced [--scenario NAME] [--port N]

Prints the port once it listens. Each scenario is under its own path: --base-url http://127.0.0.1:PORT/NAME.
"""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import replace

from harness.loadgen.paced.scenarios import SCENARIOS
from harness.loadgen.paced.server import PacedServer


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -m harness.loadgen.paced", description=__doc__)
    parser.add_argument("--scenario", default="plain", choices=list(SCENARIOS), help="without a path prefix")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--first-ms", type=float, default=200.0, help="time to the first token")
    parser.add_argument("--step-ms", type=float, default=10.0, help="time per token after it")
    args = parser.parse_args()
    pace = {"first_s": args.first_ms / 1e3, "step_s": args.step_ms / 1e3}
    scenarios = {name: replace(scenario, **pace) for name, scenario in SCENARIOS.items()}
    server = PacedServer(scenarios, args.scenario, args.host, args.port)
    print(server.port, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()


if __name__ == "__main__":
    main()
