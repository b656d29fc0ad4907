"""What a step of a simulated platform takes, as named terms in seconds.

Data sheets give rates, the model gives operations and bytes (`work`), replay gives misses (`misses`), and the
platform's `costs` give the few scalars that neither does, each with its source. All ranks step together: a term that a
rank computes alone is that of the busiest one.

A decode step: the weights it reads (experts by how many of them the batch uses) or the operations on them, whichever
is longer; attention to the selected records, a block of the kernel for each request (or 64 of its heads) on a
multiprocessor of its own; the indexer over the context; a fixed part per layer and one per request; and the misses'
copies that nothing hides (HiSparse, sections 3.4 and 3.5). A prefill step: each part over the peak of its own
precision, with one efficiency for all; beside it the copies of the new records to the host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.model_sizes import model_size
from harness.schema import Config, OffloadSystem, Prefetch, Scalar, Staging
from harness.simulation.misses import Floats, MissTable, miss_table
from harness.simulation.work import Work, work_of

# SGLang 0.5.23: whatever the batch, 4 blocks of 1024 threads copy a recorded plan into a shared layer; the block of a
# request that fetches for itself has 960. Each warp has a record under way, so that a block's rate goes by its threads.
REPLAY_WORKERS = 4 * 1024 / 960


@dataclass(frozen=True, slots=True)
class DecodeTerms:
    """Seconds of each of some consecutive decode steps: float64 [steps], or one number where all take the same."""

    weights: float
    attention: Floats | float
    indexer: Floats
    fixed: float
    requests: float
    exposed_io: Floats
    misses: Floats  # records fetched, all ranks and layers; not seconds
    total: Floats

    @classmethod
    def of(
        cls,
        *,
        weights: float,
        attention: Floats | float,
        indexer: Floats,
        fixed: float,
        requests: float,
        misses: Floats,
        exposed: Callable[[Floats], Floats],
    ) -> DecodeTerms:
        """exposed: from what steps take where nothing is fetched to what each waits for records."""
        compute = weights + attention + indexer + fixed + requests
        io = exposed(compute)
        return cls(weights, attention, indexer, fixed, requests, io, misses, compute + io)


class RankBatch(NamedTuple):
    """Requests of one rank that decode, and the positions they hold together when the first step begins."""

    requests: int
    positions: int


class RankChunks(NamedTuple):
    """Prompt chunks of one rank: (first position, length, whether it ends the prompt)."""

    chunks: tuple[tuple[int, int, bool], ...]


class _Rank(NamedTuple):
    """What some consecutive steps take of one rank, float64 [steps], or one number where all steps take the same."""

    attention: Floats | float
    indexer: Floats
    fetched: Floats  # seconds to fetch one layer's misses
    missed: Floats  # records fetched in one layer, if every layer fetches its own

    def part(self, begin: int, end: int) -> _Rank:
        attention = self.attention
        at = slice(begin, end)
        if isinstance(attention, np.ndarray):
            attention = attention[at]
        return _Rank(attention, self.indexer[at], self.fetched[at], self.missed[at])


class StepCosts:
    """Costs of one completed, simulated config (which has all the numbers: `harness.simulated_rules`)."""

    def __init__(self, config: Config, misses: MissTable | None = None):
        platform, engine = config.platform, config.engine
        self.work: Work = work_of(config)
        self._table = misses or miss_table()
        self._offload = config.offload
        self._full_pages = engine.staging is Staging.full_pages
        self._layers = config.model.num_layers
        self._coverage = model_size(config.model).coverage
        self._flops = float(platform.flops or 0)
        small = (config.model.weight_bytes or 2) <= 1 and platform.flops_fp8
        self._weight_flops = float(platform.flops_fp8 or 0) if small else self._flops
        small_index = (config.model.index_dtype or config.model.dtype).num_bytes == 1 and platform.flops_fp8
        self._index_flops = float(platform.flops_fp8 or 0) if small_index else self._flops
        costs = platform.costs
        self._processors = platform.multiprocessors or 1
        self._bandwidth = float(platform.memory_bandwidth or 0) * (costs.memory_efficiency.value or 1.0)
        self._layer_s, self._request_s = _value(costs.layer_s), _value(costs.request_s)
        self._attention = self._flops * _value(costs.attention_efficiency)
        self._prefill_efficiency = _value(costs.prefill_efficiency)
        self._worker, self._join_s = _value(costs.worker_rate), _value(costs.join_s)
        self._link = _value(costs.link_rate) or float(platform.host_link or 0)
        self._fetches = self._offload.system.fetches
        self._alone_at = (0, 0)  # contexts that `_alone` covers

    stolen_s = 0.0  # what a request's arrival takes from a step under way

    def entry_s(self, prompt_len: int) -> float:
        """From sending a request to the engine's having it: nothing, the papers' TTFT is prefill and waiting."""
        return 0.0

    def prefill(self, ranks: Sequence[RankChunks]) -> float:
        """Seconds of a step's prompt chunks."""
        w, alike = self.work, set(ranks)
        own = max(map(self._own_prefill, alike), default=0.0)
        tokens = sum(length for rank in ranks for _, length, _ in rank.chunks)
        compute = (own + tokens * w.spread_flops / self._weight_flops) / self._prefill_efficiency
        if not self._fetches:
            return compute
        streamed, at_end = (max(map(part, alike), default=0.0) for part in (self._streamed, self._at_end))
        return max(compute, streamed) + at_end

    def decode(self, ranks: Sequence[RankBatch], steps: int) -> DecodeTerms:
        """Terms of `steps` steps during which the batches stay; contexts grow by one position a step.

        At least one rank decodes. A rank's requests are taken at their mean context.
        """
        w = self.work
        tokens, most = sum(rank.requests for rank in ranks), max(rank.requests for rank in ranks)
        read = w.rank_weight_bytes + w.expert_weight_bytes * self._coverage(tokens)
        computed = (most * w.rank_flops + tokens * w.spread_flops) / self._weight_flops
        counts = Counter(rank for rank in ranks if rank.requests)  # ranks that hold the same do the same
        alike = [self._rank(batch, steps) for batch in counts]
        fetched = _longest([rank.fetched for rank in alike])
        misses = alike[0].missed * float(next(iter(counts.values())))
        for rank, count in zip(alike[1:], list(counts.values())[1:], strict=True):
            misses = misses + rank.missed * float(count)
        return DecodeTerms.of(
            weights=max(read / self._bandwidth, computed),
            attention=_longest([rank.attention for rank in alike]),
            indexer=_longest([rank.indexer for rank in alike]),
            fixed=self._layers * self._layer_s,
            requests=most * self._request_s,
            misses=misses * w.layers,
            exposed=lambda compute: self._exposed(compute, fetched, most),
        )

    def _rank(self, batch: RankBatch, steps: int) -> _Rank:
        """Of a rank that decodes."""
        if batch.requests > 1:
            return self._computed(batch, steps)
        begin, end = batch.positions, batch.positions + steps
        first, last = self._alone_at
        if begin < first or end > last:  # computed for all contexts between, which others have or will have
            first, last = (min(begin, first), max(end, last)) if last else (begin, end)
            self._alone_at, self._alone = (first, last), self._computed(RankBatch(1, first), last - first)
        return self._alone.part(begin - first, end - first)

    def _computed(self, batch: RankBatch, steps: int) -> _Rank:
        w, requests = self.work, float(batch.requests)
        positions = float(batch.positions) + np.arange(1, steps + 1, dtype=np.float64) * requests
        records = positions / requests / w.tokens_per_record  # of one request, in the mean
        selected: Floats | float = float(w.top_k)
        if batch.positions / requests / w.tokens_per_record < w.top_k:
            selected = np.minimum(records, w.top_k)
        missed = self._missed(requests, records)
        fetched = missed * w.record_bytes / self._rate(requests) if self._fetches else np.zeros(steps)
        return _Rank(self._attend(requests, positions, selected), self._index(positions), fetched, missed)

    def _attend(self, requests: float, positions: Floats, selected: Floats | float) -> Floats:
        """Attention of a rank's requests: selected records, and what csa attends to beside them."""
        w = self.work
        flops = selected * w.pair_flops + w.local_flops  # of one request
        if w.longer_flops:
            flops = flops + positions / requests * w.longer_flops
        read = requests * selected * w.record_bytes * w.layers
        return np.maximum(flops * self._rounds(requests) / self._attention, read / self._bandwidth)

    def _rounds(self, requests: float) -> float:
        """Attention of so many requests, in times of one that had the whole device. Each block has a multiprocessor
        for itself, so that few requests take as long as one, and most of the device is idle meanwhile."""
        blocks = self.work.attention_blocks
        if math.isinf(blocks):
            return requests
        return math.ceil(requests * math.ceil(blocks) / self._processors) * self._processors / blocks

    def _index(self, positions: Floats) -> Floats:
        w = self.work
        return np.maximum(positions * w.index_flops / self._index_flops, positions * w.state_bytes / self._bandwidth)

    def _missed(self, requests: float, records: Floats) -> Floats:
        w, system = self.work, self._offload.system
        if not system.offloads:
            return np.zeros_like(records)
        selected = np.minimum(records, w.top_k)
        if system is OffloadSystem.fetch_all:
            return requests * np.maximum(selected - 1, 0.0)  # the newest is on the device
        assert self._offload.cache_slots is not None
        return requests * selected * self._table.rate(w.top_k, self._offload.cache_slots, records)

    def _rate(self, workers: float) -> float:
        """Bytes a second of so many workers that copy at once. Each waits for its own reads, during which the others
        may have the link, and then for its turn at the link: the two times add up."""
        return 1 / (1 / (self._worker * workers) + 1 / self._link)

    def _exposed(self, compute: Floats, fetch: Floats, most: int) -> Floats:
        """What nothing hides. With exact prefetch a shared layer's copy runs beside the layers since its anchor,
        in the order of the layers: what a group of them lacks is what its last one waits for. Each waits
        at least for the other stream to have begun and ended a copy, however small."""
        w = self.work
        if not self._fetches or self._offload.prefetch is not Prefetch.exact or w.anchors == w.layers:
            return w.layers * fetch
        replayed = fetch * self._rate(most) / self._rate(REPLAY_WORKERS)
        lacking = np.maximum(0.0, replayed - compute / self._layers)
        joined = np.where(fetch > 0, self._join_s, 0.0)
        return w.anchors * fetch + (w.layers - w.anchors) * (lacking + joined)

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


def _longest(ranks: Sequence[Floats | float]) -> Floats:
    """Of each step, or of all, the rank that takes longest."""
    longest = np.asarray(ranks[0])
    for rank in ranks[1:]:
        longest = np.maximum(longest, rank)
    return longest


def _mean_below(start: int, length: int, limit: float) -> float:
    """Mean over positions start+1 .. start+length of min(position, limit)."""
    whole = min(max(0, int(limit) - start), length)  # those at or below the limit
    below = whole * start + whole * (whole + 1) / 2
    return (below + (length - whole) * limit) / length


def _value(scalar: Scalar) -> float:
    return scalar.value or 0.0
