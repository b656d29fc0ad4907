"""`/metrics`: the engine's counters in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from harness.engine.engine import Engine

_COUNTERS = {
    "prefill_tokens": "Prompt tokens computed.",
    "decode_tokens": "Tokens generated in decode steps.",
    "prefill_seconds": "Time spent computing prompts.",
    "decode_seconds": "Time spent in decode steps.",
    "decode_steps": "Decode steps run.",
    "retractions": "Requests sent back to the queue for want of memory.",
    "lookups": "Selected records looked up in the device caches.",
    "misses": "Selected records fetched from the host pool.",
    "h2d_bytes": "Record bytes copied from the host pool to the device.",
    "demand_bytes": "Of those, misses that a layer waited for.",
    "prefetch_bytes": "Of those, fetched before the layer that selects them ran.",
    "load_bytes": "Of those, read back by prefill or loaded into device caches at their start.",
    "d2h_bytes": "Record bytes copied from the device to the host pool.",
    "staging_bytes": "Of those, prompts' records.",
    "write_through_bytes": "Of those, the new records of decode steps.",
    "exposed_io_seconds": "Decode time spent waiting for record fetches.",
    "prefill_io_seconds": "Prefill time spent waiting for records on the link.",
}
_GAUGES = {
    "peak_running": "Most requests running at once since the last flush.",
    "device_kv_bytes": "Most device KV bytes reserved at once since the last flush.",
    "device_records_bytes": "Of those device KV bytes, records.",
    "device_state_bytes": "Of those device KV bytes, selection state.",
    "device_metadata_bytes": "Of those device KV bytes, page tables, slot positions and LRU order.",
    "host_kv_bytes": "Most host pool bytes reserved at once since the last flush.",
}


class _EngineCollector:
    def __init__(self, engine: Engine):
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for name, text in _COUNTERS.items():
            value = getattr(stats, name)
            if value is not None:
                yield CounterMetricFamily(f"hisparse:{name}", text, value=value)
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"hisparse:{name}", text, value=getattr(stats, name))
        yield GaugeMetricFamily("hisparse:num_running", "Requests running now.", value=self._engine.num_running)
        yield GaugeMetricFamily("hisparse:num_waiting", "Requests waiting now.", value=self._engine.num_waiting)


def exposition(engine: Engine) -> tuple[bytes, str]:
    """Body and content type of a scrape."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engine))
    return generate_latest(registry), CONTENT_TYPE_LATEST
