"""What a step of a simulated platform takes, as named terms in seconds.

Data sheets give rates, the model gives operations and bytes (`work`), replay gives misses (`misses`), and the
platform's `costs` give the few scalars that neither does, each with its source. All ranks step together: a term that a
rank computes alone is that of the busiest one.

A decode step: the weights it reads (experts by how many of them the batch uses) or the operations on them, whichever
is longer; attention to the selected records; the indexer over the context; a fixed part per layer and one per
request; and the misses' copies that nothing hides (HiSparse, sections 3.4 and 3.5). A prefill step: each part over
the peak of its own precision, with one efficiency for all; beside it the copies of the new records to the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from harness.model_sizes import model_size
from harness.schema import Config, OffloadSystem, Prefetch, Scalar, Staging
from harness.simulation.misses import Floats, MissTable, miss_table
from harness.simulation.work import Work, work_of

REPLAY_BLOCKS = 4  # thread blocks that copy a recorded plan into a shared layer, whatever the batch (SGLang 0.5.23)


@dataclass(frozen=True, slots=True)
class DecodeTerms:
    """Seconds of each of some consecutive decode steps, float64 [steps]; `exposed_io` is part of `total` too."""

    weights: Floats
    attention: Floats
    indexer: Floats
    fixed: Floats
    requests: Floats
    exposed_io: Floats
    misses: Floats  # records fetched, all ranks and layers; not seconds

    @property
    def compute(self) -> Floats:
        """What a step takes where nothing is fetched."""
        return self.weights + self.attention + self.indexer + self.fixed + self.requests

    @property
    def total(self) -> Floats:
        return self.compute + self.exposed_io


@dataclass(frozen=True, slots=True)
class RankBatch:
    """Requests of one rank that decode, and the positions they hold together when the first step begins."""

    requests: int
    positions: int


@dataclass(frozen=True, slots=True)
class RankChunks:
    """Prompt chunks of one rank: (first position, length, whether it ends the prompt)."""

    chunks: tuple[tuple[int, int, bool], ...]


class StepCosts:
    """Costs of one completed, simulated config (which has all the numbers: `harness.simulated_rules`)."""

    def __init__(self, config: Config, misses: MissTable | None = None):
        platform, engine = config.platform, config.engine
        self.work: Work = work_of(config)
        self._table = misses or miss_table()
        self._offload = config.offload
        self._full_pages = engine.staging is Staging.full_pages
        self._layers = config.model.num_layers
        self._bandwidth = float(platform.memory_bandwidth or 0)
        self._coverage = model_size(config.model).coverage
        self._flops = float(platform.flops or 0)
        small = (config.model.weight_bytes or 2) <= 1 and platform.flops_fp8
        self._weight_flops = float(platform.flops_fp8 or 0) if small else self._flops
        small_index = (config.model.index_dtype or config.model.dtype).num_bytes == 1 and platform.flops_fp8
        self._index_flops = float(platform.flops_fp8 or 0) if small_index else self._flops
        costs = platform.costs
        self._layer_s, self._request_s = _value(costs.layer_s), _value(costs.request_s)
        self._attention = self._flops * _value(costs.attention_efficiency)
        self._prefill_efficiency = _value(costs.prefill_efficiency)
        self._worker, self._join_s = _value(costs.worker_rate), _value(costs.join_s)
        self._link = _value(costs.link_rate) or float(platform.host_link or 0)

    stolen_s = 0.0  # what a request's arrival takes from a step under way

    def entry_s(self, prompt_len: int) -> float:
        """From sending a request to the engine's having it: nothing, the papers' TTFT is prefill and waiting."""
        return 0.0

    def prefill(self, ranks: Sequence[RankChunks]) -> float:
        """Seconds of a step's prompt chunks."""
        w = self.work
        own = max((self._own_prefill(rank) for rank in set(ranks)), default=0.0)
        tokens = sum(length for rank in ranks for _, length, _ in rank.chunks)
        compute = (own + tokens * w.spread_flops / self._weight_flops) / self._prefill_efficiency
        if not self._offload.system.offloads or self._offload.system is OffloadSystem.no_io_oracle:
            return compute
        streamed, at_end = (max((f(rank) for rank in set(ranks)), default=0.0) for f in (self._streamed, self._at_end))
        return max(compute, streamed) + at_end

    def decode(self, ranks: Sequence[RankBatch], steps: int) -> DecodeTerms:
        """Terms of `steps` steps during which the batches stay; contexts grow by one position a step.

        At least one rank decodes. A rank's requests are taken at their mean context.
        """
        w, grown = self.work, np.arange(1, steps + 1, dtype=np.float64)
        tokens = sum(rank.requests for rank in ranks)
        most = max(rank.requests for rank in ranks)
        read = w.rank_weight_bytes + w.expert_weight_bytes * self._coverage(tokens)
        computed = (most * w.rank_flops + tokens * w.spread_flops) / self._weight_flops
        weights = max(read / self._bandwidth, computed)
        alike = Counter(rank for rank in ranks if rank.requests)  # ranks that hold the same do the same
        requests = np.array([[float(rank.requests)] for rank in alike])
        positions = np.array([[float(rank.positions)] for rank in alike]) + grown * requests
        missed = self._missed(requests, positions)
        attention = self._attend(requests, positions).max(axis=0)
        indexer = self._index(positions).max(axis=0)
        fetched = self._fetch_layer(requests, missed).max(axis=0)
        all_misses = (missed * np.array([[float(count)] for count in alike.values()])).sum(axis=0) * w.layers
        fixed = np.full(steps, self._layers * self._layer_s)
        per_request = np.full(steps, most * self._request_s)
        terms = DecodeTerms(
            np.full(steps, weights), attention, indexer, fixed, per_request, np.zeros(steps), all_misses
        )
        return self._with_io(terms, fetched, most)

    def _attend(self, requests: Floats, positions: Floats) -> Floats:
        """Attention of a rank's requests (float64 [ranks, 1], positions [ranks, steps]): selected records, and what csa
        attends to beside them."""
        w = self.work
        records = positions / requests / w.tokens_per_record
        selected = np.minimum(records, w.top_k)
        flops = requests * (selected * w.pair_flops + w.local_flops) + positions * w.longer_flops
        read = requests * selected * w.record_bytes * w.layers
        return np.maximum(flops / self._attention, read / self._bandwidth)

    def _index(self, positions: Floats) -> Floats:
        w = self.work
        return np.maximum(positions * w.index_flops / self._index_flops, positions * w.state_bytes / self._bandwidth)

    def _missed(self, requests: Floats, positions: Floats) -> Floats:
        """Records a rank fetches in one layer, if every layer fetches its own."""
        w, system = self.work, self._offload.system
        if not system.offloads:
            return np.zeros_like(positions)
        records = positions / requests / w.tokens_per_record
        selected = np.minimum(records, w.top_k)
        if system is OffloadSystem.fetch_all:
            return requests * np.maximum(selected - 1, 0.0)  # the newest is on the device
        assert self._offload.cache_slots is not None
        return requests * selected * self._table.rate(w.top_k, self._offload.cache_slots, records)

    def _fetch_layer(self, requests: Floats, missed: Floats) -> Floats:
        """Seconds to fetch one layer's misses, by one worker a request."""
        if self._offload.system is OffloadSystem.no_io_oracle or not self._offload.system.offloads:
            return np.zeros_like(missed)
        return missed * self.work.record_bytes / self._rate(requests)

    def _rate(self, workers: Floats | float) -> Floats | float:
        """Bytes a second of so many workers that copy at once. Each waits for its own reads, during which the others
        may have the link, and then for its turn at the link: the two times add up."""
        return 1 / (1 / (self._worker * workers) + 1 / self._link)

    def _with_io(self, terms: DecodeTerms, fetch: Floats, most: int) -> DecodeTerms:
        """Adds what nothing hides. With exact prefetch a shared layer's copy runs beside the layers since its anchor,
        in the order of the layers: what a group of them lacks is what its last one waits for. Each waits
        at least for the other stream to have begun and ended a copy, however small."""
        w = self.work
        if self._offload.prefetch is Prefetch.exact and w.anchors < w.layers:
            replayed = fetch * self._rate(most) / self._rate(REPLAY_BLOCKS)
            lacking = np.maximum(0.0, replayed - terms.compute / self._layers)
            joined = np.where(fetch > 0, self._join_s, 0.0)
            exposed = w.anchors * fetch + (w.layers - w.anchors) * (lacking + joined)
        else:
            exposed = w.layers * fetch
        values = {f.name: getattr(terms, f.name) for f in fields(terms)}
        return DecodeTerms(**(values | {"exposed_io": exposed}))

    def _own_prefill(self, rank: RankChunks) -> float:
        """Of one rank's chunks: projections, attention and indexer, each over its own peak, before the efficiency."""
        w = self.work
        seconds = 0.0
        for start, length, _ in rank.chunks:
            mean = start + (length + 1) / 2  # positions a token sees, itself included
            reach = w.top_k * w.tokens_per_record if w.sparse_prefill else start + length
            seen = _mean_below(start, length, reach) / w.tokens_per_record
            attention = seen * w.pair_flops + w.local_flops + mean * w.longer_flops
            index = mean * w.index_flops if w.sparse_prefill else 0.0
            seconds += length * (
                w.rank_flops / self._weight_flops + attention / self._flops + index / self._index_flops
            )
        return seconds

    def _streamed(self, rank: RankChunks) -> float:
        tokens = 0 if self._full_pages else sum(length for _, length, _ in rank.chunks)
        return tokens * self._token_bytes / self._link

    def _at_end(self, rank: RankChunks) -> float:
        tokens = sum(start + length for start, length, last in rank.chunks if last) if self._full_pages else 0
        return tokens * self._token_bytes / self._link

    @property
    def _token_bytes(self) -> float:
        return self.work.record_bytes * self.work.layers / self.work.tokens_per_record


def _mean_below(start: int, length: int, limit: float) -> float:
    """Mean over positions start+1 .. start+length of min(position, limit)."""
    whole = min(max(0, int(limit) - start), length)  # those at or below the limit
    below = whole * start + whole * (whole + 1) / 2
    return (below + (length - whole) * limit) / length


def _value(scalar: Scalar) -> float:
    return scalar.value or 0.0
