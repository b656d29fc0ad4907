"""When record copies arrive over an emulated link (`harness.engine.kv.link`), layer by layer, in a step's own time.

The link carries one transfer after the other, each for bytes / bandwidth, and it arrives a latency later; a thread that
waits for it wakes `wake_s` late. Within a step the layers come at equal distances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.schema import LinkConfig
from harness.simulation.misses import Floats


@dataclass(frozen=True, slots=True)
class LinkTime:
    """record_s: seconds that one record occupies the link; a transfer arrives `late_s` after it has left it."""

    record_s: float
    late_s: float

    @classmethod
    def of(cls, link: LinkConfig, record_bytes: int, wake_s: float) -> LinkTime | None:
        """None where the link is a memory copy."""
        if link.bandwidth is None:
            return None
        return cls(record_bytes / float(link.bandwidth), link.latency_us * 1e-6 + wake_s)

    def decode(self, compute: Floats, missed: Floats, demanded: list[bool], written: float) -> Floats:
        """Seconds that a step waits for records, float64 [steps].

        compute: seconds of the step without waiting [steps]; missed: records of one layer [steps]; demanded: of each
        layer whether it fetches when it runs, else its records were submitted with those of the last one that does;
        written: records that the step before has sent to the host after its last layer.
        """
        layer_s = compute / len(demanded)
        likely = 1.0 - np.exp(-missed)  # that a layer misses anything, so that it waits at all
        took = missed * self.record_s / np.maximum(likely, 1e-9)  # where it does
        now, waited = layer_s.copy(), np.zeros_like(compute)
        free = np.full_like(compute, written * self.record_s)  # submitted one layer's time before this step's first
        for at, demands in enumerate(demanded):
            if demands:
                arrival = np.maximum(now, free) + took
                followers = _until_true(demanded[at + 1 :])
                free = np.maximum(now, free) + (1 + followers) * took * likely
            else:
                arrival = arrival + took
            wait = likely * np.maximum(0.0, arrival + self.late_s - now)
            waited += wait
            now = now + wait + layer_s
        return waited

    def chunk(self, compute: float, layers: int, start: int, length: int) -> tuple[float, float]:
        """Seconds of a prefill chunk whose records are staged and whose earlier ones are read back, and how long after
        its end the last staged record arrives."""
        layer_s, now, free = compute / layers, 0.0, 0.0
        for _ in range(layers):
            free = max(now, free) + length * self.record_s
            if start:
                free += start * self.record_s
                now = max(now, free + self.late_s)
            now += layer_s
        return now, max(0.0, free + self.late_s - now)


def _until_true(flags: list[bool]) -> int:
    return next((number for number, flag in enumerate(flags) if flag), len(flags))
