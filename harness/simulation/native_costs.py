"""What a step of the native engine takes on a machine that `python -m harness.calibrate` has measured.

The terms are those of `harness.schema.NativeCosts`: microbenchmarks of one kind of cell, not data sheets; what serving
adds is `ServingCosts`. The host link is the cell's own, a memory copy as measured or an emulated one (`link_time`).
One rank; requests of a batch are taken at their mean context.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.engine.kv.sharing import slot_owners
from harness.native_rules import cost_key
from harness.schema import Config, OffloadSystem, Scalar
from harness.simulation.costs import DecodeTerms, RankBatch, RankChunks
from harness.simulation.link_time import LinkTime
from harness.simulation.misses import Floats, MissTable
from harness.simulation.work import Work, work_of


class NativeStepCosts:
    """Costs of one completed, simulated config (which has all it needs: `harness.native_rules`)."""

    def __init__(self, config: Config):
        self.work: Work = work_of(config)
        self._costs, self._serving = config.platform.native[cost_key(config)], config.platform.serving
        self._system, self._slots = config.offload.system, config.offload.cache_slots or 0
        self._fetches = self._system.fetches
        rates = {(slots, context): rate for slots, context, rate in self._costs.miss_rates}
        self._table = MissTable(rates) if rates else None
        wake_s = _value(self._serving.wake_s)
        link = LinkTime.of(config.platform.link, self.work.record_bytes, wake_s)
        self._link = link if self._system.offloads else None
        self.stolen_s = _value(self._serving.entry_s)
        owners = slot_owners(config)
        self._demanded = [owner == layer for layer, owner in enumerate(owners)]  # fetches when it runs

    def entry_s(self, prompt_len: int) -> float:
        """From sending a request to the engine's having it."""
        return _value(self._serving.request_s) + prompt_len * _value(self._serving.prompt_token_s)

    def prefill(self, ranks: Sequence[RankChunks]) -> float:
        """Seconds of a step's prompt chunks, one after the other."""
        (rank,) = ranks
        return sum(self._chunk(*chunk) for chunk in rank.chunks)

    def decode(self, ranks: Sequence[RankBatch], steps: int) -> DecodeTerms:
        """Terms of `steps` steps during which the batch stays; contexts grow by one position a step."""
        (rank,) = ranks
        requests, costs, serving = rank.requests, self._costs, self._serving
        contexts = rank.positions / requests + np.arange(1, steps + 1, dtype=np.float64)
        missed = requests * self._missed(contexts)
        return DecodeTerms.of(
            weights=0.0,
            attention=0.0,
            indexer=requests * contexts * _value(costs.position_s),
            fixed=_value(costs.step_s) + _value(serving.step_s),
            requests=requests * (_value(costs.request_s) + _value(serving.token_s)),
            misses=missed * self.work.layers,
            exposed=lambda compute: self._exposed(compute, missed, requests),
        )

    def _chunk(self, start: int, length: int, is_last: bool) -> float:
        costs, end = self._costs, start + length
        seconds = _value(costs.chunk_s) + length * _value(costs.token_s) + end * _value(costs.prefix_s)
        seconds += length * end * _value(costs.pair_s)
        still = 0.0
        if self._link:
            seconds, still = self._link.chunk(seconds, self.work.layers, start, length)
        if not is_last:
            return seconds
        return seconds + still + _value(costs.prompt_s) + self._begin_caches(end)

    def _begin_caches(self, prompt_len: int) -> float:
        """Loading what device caches start with, over an emulated link."""
        if self._link is None or not self._system.keeps_slots:
            return 0.0
        records = min(prompt_len - 1, self._slots) + 1
        return records * self.work.layers * self._link.record_s + self._link.late_s

    def _missed(self, contexts: Floats) -> Floats:
        """Records that one request lacks in one layer."""
        if not self._system.offloads:
            return np.zeros_like(contexts)
        records = contexts / self.work.tokens_per_record
        selected = np.minimum(records, self.work.top_k)
        if self._system is OffloadSystem.fetch_all:
            return np.maximum(selected - 1, 0.0)
        assert self._table is not None
        return selected * self._table.rate(self.work.top_k, self._slots, records)

    def _exposed(self, compute: Floats, missed: Floats, requests: int) -> Floats:
        """What a step waits for its records: their copies, or where it takes longer the emulated link."""
        if not self._fetches:
            return np.zeros_like(compute)
        likely = 1.0 - np.exp(-missed)
        copies = sum(self._demanded) * (likely * _value(self._costs.fetch_s) + missed * _value(self._costs.record_s))
        if self._link is None:
            return copies
        written = float(requests * self.work.layers)
        return np.maximum(copies, self._link.decode(compute, missed, self._demanded, written))


def _value(scalar: Scalar) -> float:
    return scalar.value or 0.0
