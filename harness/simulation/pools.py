"""What a simulated request holds, by the rules of the system that is simulated.

`engine.host_to_device_ratio` cuts the memory as SGLang does: the device pool counts tokens, the host pool has `ratio`
times as many, and selection state for all of those is set aside from the start. Without it, each request counts what
it holds (the native engine). `engine.staging=full_pages` adds the whole prompt to what a request holds until its
first decode step.
"""

from __future__ import annotations

from harness.engine.admission import Admission, FullOutput, make_admission
from harness.engine.footprint import Footprint, ceil_div
from harness.schema import AdmissionRule, Config, Staging

_WHOLE = (AdmissionRule.full_output, AdmissionRule.look_ahead)  # the same where the device holds slots, not contexts


def record_bytes_per_token(config: Config) -> float:
    """Records of one token, all managed layers."""
    footprint = Footprint(config)
    return footprint.num_layers * footprint.record_bytes / footprint.tokens_per_record


def state_bytes_per_token(config: Config) -> float:
    """Selection state of one token, all layers: what grows with the context, not what a request has once."""
    footprint, many = Footprint(config), 1 << 20
    return (footprint.request(many).selection_state - footprint.request(0).selection_state) / many


def pool_tokens(config: Config) -> tuple[int, int]:
    """Tokens of the device pool and of the host pool where `host_to_device_ratio` cuts them."""
    ratio = config.engine.host_to_device_ratio
    assert ratio is not None
    records, state = record_bytes_per_token(config), state_bytes_per_token(config)
    device = int(int(config.engine.device_kv_budget) / (records + ratio * state))
    return device, min(int(ratio * device), int(int(config.engine.host_kv_budget) / records))


class Pools(FullOutput):
    """The exact look-ahead over whole requests, with an offload system's prompts on the device in full at first."""

    def __init__(self, config: Config):
        super().__init__(config)
        self._staged: dict[int, int] = {}
        self._full_pages = config.engine.staging is Staging.full_pages
        self._cut = config.engine.host_to_device_ratio is not None
        self._token = record_bytes_per_token(config)
        if self._full_pages or self._cut:  # no workspace then: a prompt is read where it lies
            self._device_budget = int(config.engine.device_kv_budget)
        if self._cut:
            device, host = pool_tokens(config)
            self._device_budget, self._host_budget = int(device * self._token), int(host * self._token)

    def refusal(self, prompt_len: int, max_new_tokens: int) -> str | None:
        device, host = self._need(prompt_len, prompt_len + max_new_tokens)
        staged = device + self._staging(prompt_len, device)
        if staged > self._device_budget or host > self._host_budget:
            return super().refusal(prompt_len, max_new_tokens) or (
                f"a request of {prompt_len} + {max_new_tokens} tokens fits the pools neither in prefill nor after: "
                f"device {staged:,} of {self._device_budget:,} bytes, host {host:,} of {self._host_budget:,}: raise "
                "engine.memory_fraction, or change engine.host_to_device_ratio or engine.staging"
            )
        return None

    def reserve(self, request_id: int, known: int, left: int) -> bool:
        device, host = self._need(known, known + left)
        staging = self._staging(known, device)
        if not self._fits(device + staging, host) or not super().reserve(request_id, known, left):
            return False
        self._staged[request_id] = staging
        self._device_used += staging
        return True

    def grow(self, request_id: int, positions: int) -> bool:
        """Its first decode step gives back what the prompt took beyond the cache slots."""
        if positions > self._held[request_id].known:
            self._device_used -= self._staged.pop(request_id, 0)
        return super().grow(request_id, positions)

    def release(self, request_id: int) -> None:
        self._device_used -= self._staged.pop(request_id, 0)
        super().release(request_id)

    def _need(self, positions: int, total: int) -> tuple[int, int]:
        device, host = super()._need(positions, total)
        return (self._footprint.request(total).records if self._cut else device), host

    def _staging(self, prompt_len: int, device: int) -> int:
        if not self._full_pages:
            return 0
        page = self._footprint.page_size
        return max(0, int(ceil_div(prompt_len, page) * page * self._token) - device)


def make_pools(config: Config) -> Admission:
    """The admission rule of a simulated cell."""
    engine = config.engine
    plain = engine.host_to_device_ratio is None and engine.staging is Staging.streamed
    if plain or not config.offload.system.offloads or engine.admission not in _WHOLE:
        return make_admission(config)
    return Pools(config)


def capacity(config: Config, prompt_len: int, output_len: int) -> int:
    """Whole requests of one kind that all ranks together hold at once, each having been let in while it prefills."""
    ranks, rule, count = config.engine.data_parallel or 1, make_pools(config), 0
    while count < config.engine.max_running_requests and rule.reserve(count, prompt_len, output_len):
        if not rule.grow(count, prompt_len + 1):
            break
        count += 1
    return count * ranks
