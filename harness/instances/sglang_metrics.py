"""What SGLang's `/metrics` and log say of a point, as ServerStats."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from harness.instances.sglang_log import peaks
from harness.records import ServerStats
from harness.schema import Config
from harness.simulation.pools import record_bytes_per_token, state_bytes_per_token

_PREFIX = "sglang:"
GAUGES = (  # for env.json
    "max_total_num_tokens",
    "kv_cache_memory_usage_gb",
    "weight_memory_usage_gb",
    "graph_memory_usage_gb",
    "startup_available_gpu_memory_gb",
    "page_size",
    "context_len",
)


class Scrape:
    """One reading of `/metrics`. Every data-parallel rank exports series of its own."""

    def __init__(self, text: str):
        """Raises ValueError for what is no exposition."""
        self._samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name.removeprefix(_PREFIX), []).append(sample)

    def total(self, name: str, **labels: str) -> float | None:
        """Summed over ranks; None where no rank has it. A label's value ending in * is a prefix."""
        values = [sample.value for sample in self._of(name, labels)]
        return sum(values) if values else None

    def largest(self, name: str, **labels: str) -> float | None:
        """Summed over what one rank has, the most of all ranks: for what they do in lockstep."""
        ranks: dict[tuple[str, ...], float] = {}
        for sample in self._of(name, labels):
            rank = tuple(sample.labels.get(label, "") for label in ("dp_rank", "tp_rank", "pp_rank"))
            ranks[rank] = ranks.get(rank, 0.0) + sample.value
        return max(ranks.values(), default=None)

    def gauges(self) -> dict[str, float]:
        """What `GAUGES` names, of the rank that has most."""
        return {name: value for name in GAUGES if (value := self.largest(name)) is not None}

    def _of(self, name: str, labels: dict[str, str]) -> Iterator[Sample]:
        for sample in self._samples.get(name, ()):
            if sample.labels.get("pp_rank", "0") != "0":  # the stages of a pipeline see the same tokens
                continue
            if all(_matches(sample.labels.get(label, ""), wanted) for label, wanted in labels.items()):
                yield sample


def _matches(value: str, wanted: str) -> bool:
    return value.startswith(wanted[:-1]) if wanted.endswith("*") else value == wanted


def server_stats(scrape: Scrape, log: str, config: Config, version: str) -> ServerStats:
    """Counters since the server started; peaks of `log`, which is what it wrote since the last flush.

    Bytes are the logged tokens times what a token takes by this project's arithmetic. Decode seconds are those in
    which the device ran decode steps (SGLANG_ENABLE_METRICS_DEVICE_TIMER).
    """
    most = peaks(log)
    records, state = record_bytes_per_token(config), state_bytes_per_token(config)
    decoded = scrape.total("realtime_tokens_total", mode="decode")
    retracted = scrape.total("num_retracted_requests_total")
    if retracted is None and decoded is not None:
        retracted = 0.0  # it is exported from the first one on
    host_tokens = most.host_tokens or 0
    held = most.device_tokens
    state_tokens = host_tokens if config.offload.system.offloads else (held or 0)
    return ServerStats(
        version=version,
        prefill_tokens=_whole(scrape.total("realtime_tokens_total", mode="prefill_compute")),
        decode_tokens=_whole(decoded),
        prefill_seconds=scrape.largest("forward_execution_seconds_total", category="extend*"),
        decode_seconds=scrape.largest("forward_execution_seconds_total", category="decode*"),
        decode_steps=_whole(scrape.largest("cuda_graph_passes_total", mode="decode*")),
        retractions=_whole(retracted),
        peak_running=most.running,
        device_records_bytes=None if held is None else int(held * records),
        device_state_bytes=None if held is None else int(state_tokens * state),
        device_kv_bytes=None if held is None else int(held * records + state_tokens * state),
        host_kv_bytes=None if most.host_tokens is None else int(host_tokens * records),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
