"""Admission rules: whether one more request may enter and grow, by the bytes it holds. Pure arithmetic.

`full_output` reserves every request's whole length when it enters, so nothing is ever retracted. `slots` reserves
what a request always needs on the device (HiSparse: B slots a layer, and its selection state) and takes pages of
the host pool as they fill. `new_token_ratio` reserves only what a request holds now and admits by an estimate of
what is still to come, as SGLang does; the estimate can be wrong, and the scheduler then retracts. `look_ahead`
follows all to their ends, one after another, as SGLang does where no output can end early.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from harness.engine.footprint import Footprint, KVBytes
from harness.schema import AdmissionRule, Config
from harness.units import show_bytes

CLIP = 4096  # tokens of an output that SGLang counts on at most (its CLIP_MAX_NEW_TOKENS)


@dataclass(slots=True)
class Holding:
    """What one admitted request has reserved. Lengths in tokens."""

    known: int  # tokens it had when it entered
    positions: int  # tokens it has room for
    total: int  # prompt and output: it never needs more
    device: int
    host: int


class Admission(ABC):
    """The ledger of reservations. A rule says what a request reserves, and when it may enter."""

    def __init__(self, config: Config):
        self._footprint = Footprint(config)
        self._device_budget = int(config.engine.device_kv_budget) - self._footprint.workspace
        self._host_budget = int(config.engine.host_kv_budget)
        self._held: dict[int, Holding] = {}
        self._device_used = 0
        self._host_used = 0
        self._since = 0  # decode steps since the last retraction

    def refusal(self, prompt_len: int, max_new_tokens: int) -> str | None:
        """Why a request could never be served to its end, even alone; None when it could."""
        need = self._footprint.request(prompt_len + max_new_tokens)
        if need.device > self._device_budget:
            extra = self._footprint.workspace
            workspace = f" after {show_bytes(extra)} of prefill workspace" if extra else ""
            return (
                f"a request of {prompt_len} + {max_new_tokens} tokens needs {show_bytes(need.device)} of device "
                f"KV, the budget has {show_bytes(max(0, self._device_budget))}{workspace}: "
                "raise engine.device_kv_budget"
            )
        if need.host > self._host_budget:
            return (
                f"a request of {prompt_len} + {max_new_tokens} tokens needs {show_bytes(need.host)} of host "
                f"pool, which has {show_bytes(self._host_budget)}: raise engine.host_kv_budget"
            )
        return None

    def reserve(self, request_id: int, known: int, left: int) -> bool:
        """Let in a request of `known` tokens (prompt, and what it generated before a retraction) with `left` to
        generate; False, and nothing reserved, while it has to wait."""
        assert request_id not in self._held
        if not self._may_enter(known, left):
            return False
        self._held[request_id] = Holding(known, 0, known + left, 0, 0)
        entered = self.grow(request_id, known)
        assert entered, "let in what does not fit"
        return True

    def grow(self, request_id: int, positions: int) -> bool:
        """Have room for that many tokens of a request; False, and nothing changed, where it does not fit."""
        held = self._held[request_id]
        if positions <= held.positions:
            return True
        device, host = self._need(positions, held.total)
        if not self._fits(device - held.device, host - held.host):
            return False
        self._device_used += device - held.device
        self._host_used += host - held.host
        held.positions, held.device, held.host = positions, device, host
        return True

    def release(self, request_id: int) -> None:
        """Give back a reservation. Raises KeyError for a request that holds none."""
        held = self._held.pop(request_id)
        self._device_used -= held.device
        self._host_used -= held.host

    def stepped(self, steps: int) -> None:
        """That many decode steps went by."""
        self._since += steps

    def retracted(self) -> None:
        """Requests were retracted for want of memory; their reservations are released."""
        self._since = 0

    def stable_steps(self, request_ids: tuple[int, ...], steps: int, someone_waits: bool) -> int:
        """For how many steps, at most `steps`, these requests can all grow while nobody who waits can enter.

        Each of them has room for its next step already.
        """
        return steps

    @property
    def device_bytes(self) -> int:
        """Reserved now; with no request, nothing (the workspace is not part of it)."""
        return self._device_used

    @property
    def host_bytes(self) -> int:
        return self._host_used

    def reserved(self) -> KVBytes:
        """All that is reserved now, by kind; its `device` and `host` are `device_bytes` and `host_bytes`."""
        parts = [self._parts(held.positions, held.total) for held in self._held.values()]
        return KVBytes(
            records=sum(part.records for part in parts),
            selection_state=sum(part.selection_state for part in parts),
            metadata=sum(part.metadata for part in parts),
            host=sum(part.host for part in parts),
        )

    @abstractmethod
    def _parts(self, positions: int, total: int) -> KVBytes:
        """What is reserved for a request with room for `positions` of its `total` tokens."""

    def _need(self, positions: int, total: int) -> tuple[int, int]:
        """Device and host bytes of `_parts`."""
        parts = self._parts(positions, total)
        return parts.device, parts.host

    def _may_enter(self, known: int, left: int) -> bool:
        return self._fits(*self._need(known, known + left))

    def _fits(self, device: int, host: int) -> bool:
        """Whether that much more is free."""
        return self._device_used + device <= self._device_budget and self._host_used + host <= self._host_budget


class FullOutput(Admission):
    """Every request's whole length from the start.

    Full KV reserves a request's context, HiSparse B slots a layer and the context in the host pool.
    """

    def grow(self, request_id: int, positions: int) -> bool:
        """All at once, on entry: later steps find their room reserved."""
        return super().grow(request_id, self._held[request_id].total)

    def _parts(self, positions: int, total: int) -> KVBytes:
        return self._footprint.request(total)


class GrowsOnDemand(Admission):
    """Reservations that grow with the sequence, and may find no room."""

    def stable_steps(self, request_ids: tuple[int, ...], steps: int, someone_waits: bool) -> int:
        certain, doubtful = 1, steps + 1  # bisection: growth only goes up
        while doubtful - certain > 1:
            middle = (certain + doubtful) // 2
            certain, doubtful = (middle, doubtful) if self._can_all_grow(request_ids, middle) else (certain, middle)
        return certain

    def _can_all_grow(self, request_ids: tuple[int, ...], steps: int) -> bool:
        device = host = 0
        for request_id in request_ids:
            held = self._held[request_id]
            need = self._need(held.positions + steps - 1, held.total)
            device, host = device + need[0] - held.device, host + need[1] - held.host
        return self._fits(device, host)


class LookAhead(GrowsOnDemand):
    """SGLang's rule for requests whose whole output will come (radix cache off, `ignore_eos`).

    A request enters if its prompt fits beside what all others hold and will still generate (at most CLIP tokens of it
    each), and if at every moment to come all that then run fit: the one with least left ends first and gives back what
    it holds, and so on. So the last to enter may count on memory that others will have given back, which `full_output`
    refuses. Once memory is spoken for, nobody is tried again before someone leaves. (SGLang 0.5.23,
    `PrefillAdder.add_one_req_ignore_eos`, `batch_is_full`.) It reckons that all advance by a token a step: one that
    enters takes longer here, since others decode while its prompt is computed, so that in rare cases the youngest has
    to go back to the queue.
    """

    def __init__(self, config: Config):
        super().__init__(config)
        self._full = False  # and nobody has left since
        self._whole = [0, 0]  # device and host bytes of all who run, at their ends

    def reserve(self, request_id: int, known: int, left: int) -> bool:
        entered = super().reserve(request_id, known, left)
        if entered:
            self._add_whole(known + left, 1)
        self._full = not entered or not self._more_may_come()
        return entered

    def release(self, request_id: int) -> None:
        self._add_whole(self._held[request_id].total, -1)
        super().release(request_id)
        self._full = False

    def stable_steps(self, request_ids: tuple[int, ...], steps: int, someone_waits: bool) -> int:
        whole = self._within(self._whole, (0, 0))
        return steps if whole else super().stable_steps(request_ids, steps, someone_waits)

    def _add_whole(self, total: int, sign: int) -> None:
        device, host = self._need(total, total)
        self._whole = [self._whole[0] + sign * device, self._whole[1] + sign * host]

    def _parts(self, positions: int, total: int) -> KVBytes:
        return self._footprint.request(positions)

    def _may_enter(self, known: int, left: int) -> bool:
        if self._full and self._held:
            return False
        total = known + left
        if self._within(self._whole, self._need(total, total)):
            return True  # the quick answer where memory is no question
        running = [(held.total - held.positions, held.positions, held.total) for held in self._held.values()]
        fits = self._within(self._spoken_for(), self._need(known, total))
        return fits and self._all_fit(sorted([*running, (left, known, total)]))

    def _more_may_come(self) -> bool:
        device, host = self._spoken_for()
        return device < self._device_budget and (host == 0 or host < self._host_budget)

    def _spoken_for(self) -> tuple[int, int]:
        """What all hold, and will within their next CLIP tokens."""
        needs = [self._need(min(held.total, held.positions + CLIP), held.total) for held in self._held.values()]
        return sum(need[0] for need in needs), sum(need[1] for need in needs)

    def _within(self, used: Sequence[int], more: Sequence[int]) -> bool:
        return used[0] + more[0] <= self._device_budget and used[1] + more[1] <= self._host_budget

    def _all_fit(self, running: list[tuple[int, int, int]]) -> bool:
        """Whether these fit at every end of one of them. (tokens left, tokens it has room for, its whole length), by
        what is left."""
        for at, (steps, _, _) in enumerate(running):
            needs = [self._need(positions + steps, total) for _, positions, total in running[at:]]
            if not self._within((0, 0), (sum(need[0] for need in needs), sum(need[1] for need in needs))):
                return False
        return True


class Slots(GrowsOnDemand):
    """The device by B slots, the host pool by the pages in use (HiSparse, section 3.3).

    Cache slots and selection state are reserved for the whole length on entry, so device memory never runs out.
    Host pages are taken as they fill. A page more for each request is left free on entry: whoever was retracted
    does not come back only to be retracted at the next page boundary.
    """

    def _parts(self, positions: int, total: int) -> KVBytes:
        return self._footprint.request(total)._replace(host=self._footprint.request(positions).host)

    def _may_enter(self, known: int, left: int) -> bool:
        device, host = self._need(known, known + left)
        page = self._footprint.page_size * self._footprint.num_layers * self._footprint.record_bytes
        spare = len(self._held) * page
        return self._fits(device, host + spare)


class NewTokenRatio(GrowsOnDemand):
    """SGLang's optimistic rule: of what running requests may still generate, a share is expected to come.

    A request enters if its prompt and whole output (at most CLIP tokens of it) fit beside what the running ones hold
    and `ratio` of what they may still generate. The ratio begins at INITIAL x `engine.schedule_conservativeness` and
    falls in DECAY_STEPS decode steps to MIN_FACTOR of that. A retraction sets it to the share that the running ones
    would have generated RETRACT_STEPS later. (SGLang, `PrefillAdder` and `retract_decode`; its defaults.) Unlike
    there, retraction takes back as few requests as the next step needs, and the youngest first.
    """

    INITIAL = 0.7
    MIN_FACTOR = 0.14
    DECAY_STEPS = 600
    RETRACT_STEPS = 20

    def __init__(self, config: Config):
        super().__init__(config)
        self._initial = min(1.0, self.INITIAL * config.engine.schedule_conservativeness)
        self._start = self._initial

    @property
    def ratio(self) -> float:
        lowest = self._initial * self.MIN_FACTOR
        return max(lowest, self._start - self._since * (self._initial - lowest) / self.DECAY_STEPS)

    def retracted(self) -> None:
        super().retracted()
        generated = sum(held.positions - held.known for held in self._held.values())
        allowed = sum(held.total - held.known for held in self._held.values())
        self._start = min(1.0, (generated + self.RETRACT_STEPS * len(self._held)) / (allowed + 1))

    def stable_steps(self, request_ids: tuple[int, ...], steps: int, someone_waits: bool) -> int:
        """The estimate falls at every step, so that whoever waits may enter at any."""
        return 1 if someone_waits else super().stable_steps(request_ids, steps, someone_waits)

    def _parts(self, positions: int, total: int) -> KVBytes:
        return self._footprint.request(positions)

    def _may_enter(self, known: int, left: int) -> bool:
        ratio = self.ratio
        device, host = self._need(known + min(left, CLIP), known + left)
        for held in self._held.values():
            to_come = math.ceil(ratio * min(held.total - held.positions, CLIP))
            later = self._need(held.positions + to_come, held.total)
            device, host = device + later[0] - held.device, host + later[1] - held.host
        return self._fits(device, host)


_RULES: dict[AdmissionRule, type[Admission]] = {
    AdmissionRule.full_output: FullOutput,
    AdmissionRule.slots: Slots,
    AdmissionRule.new_token_ratio: NewTokenRatio,
    AdmissionRule.look_ahead: LookAhead,
}


def make_admission(config: Config) -> Admission:
    """The rule of `engine.admission`."""
    return _RULES[config.engine.admission](config)
