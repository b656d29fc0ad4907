"""One point in virtual time: the pure scheduler of every rank, the costs of their steps, a clock that jumps.

Where `stable_steps` says that a plan repeats, all its steps are taken at once, up to the next arrival; that gives what
taking them one by one gives, to the bit. A stretch of steps is one chunk of tokens in a request's record: its
first-token, per-token and end-to-end times are exact, and the gaps within a stretch are its mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.engine.scheduler import Job, Plan, Scheduler
from harness.records import RequestRecord, ServerStats
from harness.schema import Config
from harness.simulation.costs import DecodeTerms, RankBatch, RankChunks, StepCosts
from harness.simulation.native_costs import NativeStepCosts
from harness.simulation.pacing import Arrival, Delayed, Pacing
from harness.simulation.pools import make_pools
from harness.simulation.work import Work

AnyCosts = StepCosts | NativeStepCosts


@dataclass(frozen=True, slots=True)
class Asked:
    """Lengths of one request, tokens."""

    prompt_len: int
    output_len: int


@dataclass(slots=True)
class SimulatedPoint:
    """What a point gave: requests as a client would have seen them, and the server's counters."""

    requests: list[RequestRecord]
    stats: ServerStats
    prefill_seconds: float
    decode_seconds: float


@dataclass(slots=True)
class _Tally:
    """Counters of the whole node."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    decode_steps: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    exposed_s: float = 0.0
    misses: float = 0.0
    lookups: float = 0.0
    retractions: int = 0
    peak_running: int = 0
    device_bytes: int = 0
    host_bytes: int = 0


@dataclass(slots=True)
class _Rank:
    """One scheduler; requests come to the ranks in turn, as SGLang's data-parallel controller gives them."""

    scheduler: Scheduler
    positions: dict[int, int] = field(default_factory=dict)  # of requests that decode: tokens that have KV


def simulate(
    config: Config,
    asked: Sequence[Asked],
    pacing: Pacing,
    *,
    jump: bool = True,
    mirrored: bool = False,
    costs: AnyCosts | None = None,
) -> SimulatedPoint:
    """Run a completed simulated config in virtual time.

    asked: the point's requests; `pacing` gives their numbers. jump=False takes every step by itself, for tests.
    mirrored: the load is that of one rank, and all ranks do the same; counters are the node's, requests one rank's.
    Raises ValueError for a request that never fits.
    """
    return _Simulation(config, asked, pacing, jump, mirrored, costs or step_costs(config)).run()


def step_costs(config: Config) -> AnyCosts:
    """Of a machine that was calibrated, or of a platform of data sheets and published rows."""
    return NativeStepCosts(config) if config.platform.native else StepCosts(config)


class _Simulation:
    def __init__(
        self, config: Config, asked: Sequence[Asked], pacing: Pacing, jump: bool, mirrored: bool, costs: AnyCosts
    ):
        engine, ranks = config.engine, config.engine.data_parallel or 1
        self._copies = ranks if mirrored else 1
        self._asked, self._jump, self._costs = asked, jump, costs
        self._pacing = Delayed(pacing, lambda number: costs.entry_s(asked[number].prompt_len))
        self._busy: list[_Rank] = []  # those with requests, in the order of the ranks
        self._ranks = [
            _Rank(Scheduler(make_pools(config), engine.max_running_requests, engine.prefill_chunk_tokens))
            for _ in range(1 if mirrored else ranks)
        ]
        self._arrivals: dict[int, Arrival] = {}
        self._records: list[RequestRecord] = []
        self._open: dict[int, RequestRecord] = {}
        self._tally = _Tally()
        self._now = 0.0
        self._stolen_s = 0.0  # from the next step, by what arrived
        self._turn = 0
        self._selects = config.offload.system.offloads

    def run(self) -> SimulatedPoint:
        while True:
            for arrival in self._pacing.due(self._now):
                self._enter(arrival)
            steps = [(rank, rank.scheduler.plan()) for rank in self._busy]
            for rank, plan in steps:
                self._retract(rank, plan)
            if any(plan for _, plan in steps):
                self._step([(rank, plan) for rank, plan in steps if plan])
                continue
            after = self._pacing.next_s()
            if after is None:
                break
            self._now = max(self._now, after)
        assert not self._open, "requests are left that no rank can run"
        return SimulatedPoint(self._records, self._stats(), self._tally.prefill_s, self._tally.decode_s)

    def _enter(self, arrival: Arrival) -> None:
        asked, rank = self._asked[arrival.number], self._ranks[self._turn % len(self._ranks)]
        refusal = rank.scheduler.admission.refusal(asked.prompt_len, asked.output_len)
        if refusal:
            raise ValueError(refusal)
        self._turn += 1
        self._stolen_s += self._costs.stolen_s if self._open else 0.0
        number = arrival.number
        self._arrivals[number] = arrival
        self._open[number] = RequestRecord(
            request_id=f"request-{number:05d}",
            worker=arrival.worker,
            prompt_sha=f"simulated-{number}",
            input_len=asked.prompt_len,
            output_len=asked.output_len,
            scheduled_s=arrival.time_s,
            sent_s=arrival.time_s,
            prompt_tokens=asked.prompt_len,
        )
        rank.scheduler.add(Job(request_id=number, prompt_len=asked.prompt_len, max_new_tokens=asked.output_len))
        self._busy = [rank for rank in self._ranks if rank.scheduler.num_requests]

    def _retract(self, rank: _Rank, plan: Plan) -> None:
        for number in plan.retracted:
            rank.positions.pop(number, None)
        self._tally.retractions += len(plan.retracted) * self._copies

    def _step(self, work: Sequence[tuple[_Rank, Plan]]) -> None:
        """One step of every rank that has something to do, or as many as certainly repeat before anything else
        happens."""
        self._peaks()
        self._now, self._stolen_s = self._now + self._stolen_s, 0.0
        steps = min(rank.scheduler.stable_steps(plan) for rank, plan in work) if self._jump else 1
        prefill_s = self._prefill([plan for _, plan in work])
        self._tally.prefill_s += prefill_s
        steps, self._now = self._decode(work, steps, self._now + prefill_s)
        for rank, plan in work:
            self._deliver(rank, plan, steps)

    def _prefill(self, plans: Sequence[Plan]) -> float:
        """Seconds of the prompt chunks."""
        ranks = [
            RankChunks(tuple([(c.start, c.length, c.is_last) for c in plan.prefill])) for plan in plans if plan.prefill
        ]
        if not ranks:
            return 0.0
        self._tally.prefill_tokens += sum(length for rank in ranks for _, length, _ in rank.chunks) * self._copies
        return self._costs.prefill(ranks * self._copies)

    def _decode(self, work: Sequence[tuple[_Rank, Plan]], steps: int, begin: float) -> tuple[int, float]:
        """How many steps are taken, at most `steps`, and when the last one ends: the first one that ends at or after
        the next arrival."""
        batches = [RankBatch(len(plan.decode), sum(rank.positions.values())) for rank, plan in work if plan.decode]
        if not batches:
            return 1, begin
        batches *= self._copies
        terms = self._costs.decode(batches, steps)
        ends = terms.total.copy()
        ends[0] += begin
        ends = ends.cumsum()
        after = self._pacing.next_s()
        if after is not None and ends[-1] > after:
            steps = min(steps, int(ends.searchsorted(after)) + 1)
        self._count(batches, terms, steps)
        return steps, float(ends[steps - 1])

    def _count(self, batches: Sequence[RankBatch], terms: DecodeTerms, steps: int) -> None:
        """Account for the first `steps` of these steps."""
        tally, w = self._tally, self._costs.work
        tally.decode_steps += steps
        tally.decode_tokens += steps * sum(batch.requests for batch in batches)
        tally.decode_s += float(terms.total[:steps].sum())
        if not self._selects:
            return
        tally.exposed_s += float(terms.exposed_io[:steps].sum())
        tally.misses += float(terms.misses[:steps].sum())
        for batch, count in Counter(batches).items():
            tally.lookups += _selected(batch, steps, w) * batch.requests * w.layers * count

    def _deliver(self, rank: _Rank, plan: Plan, steps: int) -> None:
        ended = rank.scheduler.advance(plan, steps)
        for chunk in plan.prefill:
            if chunk.is_last:
                rank.positions[chunk.request_id] = chunk.start + chunk.length
                self._token(chunk.request_id, 1)
        for number in plan.decode:
            rank.positions[number] += steps
            prompt_len = self._open[number].input_len
            assert prompt_len is not None
            self._token(number, rank.positions[number] - prompt_len + 1)
        for number in ended:
            del rank.positions[number]
            self._end(number)
        if ended and not rank.scheduler.num_requests:
            self._busy.remove(rank)

    def _token(self, number: int, known: int) -> None:
        """A request has `known` generated tokens now; those its client has not had yet go out (none while a
        retracted one computes again what it had)."""
        record = self._open[number]
        fresh = known - (record.output_tokens or 0)
        if fresh > 0:
            record.chunk_times_s.append(self._now)
            record.chunk_tokens.append(fresh)
            record.output_tokens = known

    def _end(self, number: int) -> None:
        record = self._open.pop(number)
        record.end_s = self._now
        record.count_source = "simulated"
        record.finish_reason = "length"
        self._records.append(record)
        self._pacing.ended(self._arrivals.pop(number), self._now)

    def _peaks(self) -> None:
        running = device = host = 0
        for rank in self._busy:
            rule = rank.scheduler.admission
            running += rank.scheduler.num_running
            device += rule.device_bytes
            host += rule.host_bytes
        tally, copies = self._tally, self._copies
        tally.peak_running = max(tally.peak_running, running * copies)
        tally.device_bytes = max(tally.device_bytes, device * copies)
        tally.host_bytes = max(tally.host_bytes, host * copies)

    def _stats(self) -> ServerStats:
        t, record = self._tally, self._costs.work.record_bytes
        return ServerStats(
            prefill_tokens=t.prefill_tokens,
            decode_tokens=t.decode_tokens,
            prefill_seconds=t.prefill_s,
            decode_seconds=t.decode_s,
            decode_steps=t.decode_steps,
            retractions=t.retractions,
            lookups=round(t.lookups) if self._selects else None,
            misses=round(t.misses) if self._selects else None,
            h2d_bytes=round(t.misses * record),
            exposed_io_seconds=t.exposed_s,
            peak_running=t.peak_running,
            device_kv_bytes=t.device_bytes,
            host_kv_bytes=t.host_bytes,
        )


def _selected(batch: RankBatch, steps: int, work: Work) -> float:
    """Records that one request of the batch selects in one layer, all steps together."""
    held = batch.positions / batch.requests
    if (held + 1) / work.tokens_per_record >= work.top_k:
        return float(work.top_k * steps)
    records = (held + np.arange(1, steps + 1)) / work.tokens_per_record
    return float(np.minimum(records, work.top_k).sum())
