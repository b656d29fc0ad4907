"""A platform in virtual time behind the engine's own scheduler: the same experiments, as arithmetic.

`load.simulate_point` runs one point; `costs` says what a step takes, `pools` what fits, `misses` what is fetched.
"""

from harness.simulation.load import simulate_point

__all__ = ["simulate_point"]
