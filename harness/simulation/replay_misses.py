"""Makes `miss_rates.csv`, the simulation's miss rates, by replay: python -m harness.simulation.replay_misses

One synthetic stream per context length, every policy and B of the grid over it (half a minute on 2 cores, the same
numbers every time). The stream is an early fit of `workloads.traces.synthetic` to the paper's figure 6, whose six means
it meets within 6%; `conf/workload/glm51_longbench.yaml` is a later fit of the same family.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.schema import LocalityConfig
from harness.simulation.misses import RATES_FILE
from workloads.replay import ReplayConfig, replay
from workloads.traces.synthetic import SyntheticStream

TOP_K = 2048
STEPS = 1000
LAYERS = 2
SEED = 1
POLICIES = ("lru", "fifo", "random")
SLOTS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # in multiples of k, as are the contexts
CONTEXTS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 49.015625, 64.0, 100.0)  # 49.0: 100,384 tokens
LOCALITY = LocalityConfig(
    static_weight=1.0, slow_weight=0.43, slow_rho=0.89, fast_weight=0.27, fast_rho=0.89, noise_weight=0.21
)


def head() -> str:
    """What stands on top of the file: what was replayed, how, and what the paper's figure 6 has."""
    return f"""\
# Miss rates by replay: misses / selected, the newest position never missing.
# Made by python -m harness.simulation.replay_misses: a stream of workloads.traces.synthetic per context, k={TOP_K},
# seed {SEED}, mean of {STEPS} decode steps of {LAYERS} layers, caches starting with the last B positions, at
# {LOCALITY}.
# Replay: workloads.replay, policy lru = HiSparse's order by the engine's kernel. Lengths are in multiples of k; context
# is the prompt.
# Beside the paper's figure 6 (context 49.0 k): staging 30.0%, fifo 17.2, random 16.1, lru 13.4 at B=2k; lru 6.7 at 4k.
policy,slots,context,miss_rate
"""


def lines(contexts: Sequence[float] = CONTEXTS, policies: Iterable[str] = POLICIES) -> Iterator[str]:
    """The file's lines for these contexts; a B that holds the whole context has none, since it never misses."""
    for context in contexts:
        grid = [(policy, slots) for policy in policies for slots in SLOTS if slots < context] + [("staging", 1.0)]
        configs = [ReplayConfig(policy, int(slots * TOP_K)) for policy, slots in grid]
        prompt_len = round(context * TOP_K)
        streams = (
            SyntheticStream(LOCALITY, prompt_len=prompt_len, steps=STEPS, top_k=TOP_K, seed=SEED, layer=layer)
            for layer in range(LAYERS)
        )
        for (policy, slots), result in zip(grid, replay(streams, configs), strict=True):
            yield f"{policy},{slots:g},{context:g},{result.miss_rate:.5f}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name(RATES_FILE), help="default: in place")
    out = parser.parse_args().out
    text = head() + "".join(lines())
    out.write_text(text, encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
