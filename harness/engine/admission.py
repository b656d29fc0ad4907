"""Admission rules: whether one more request may enter, by the bytes it will hold. Pure arithmetic."""

from __future__ import annotations

from typing import Protocol

from harness.engine.footprint import Footprint
from harness.schema import Config
from harness.units import show_bytes


class Admission(Protocol):
    def refusal(self, prompt_len: int, max_new_tokens: int) -> str | None:
        """Why a request could never be admitted, even alone; None when it could."""

    def reserve(self, request_id: int, prompt_len: int, max_new_tokens: int) -> bool:
        """Reserve what the request needs; False, and nothing reserved, while it does not fit."""

    def release(self, request_id: int) -> None:
        """Give back a reservation. Raises KeyError for a request that holds none."""

    @property
    def device_bytes(self) -> int: ...

    @property
    def host_bytes(self) -> int: ...


class FullOutput:
    """Reserve every request's whole length at once, output included, so that nothing is ever evicted.

    This is the exact look-ahead SGLang makes with the radix cache off and `ignore_eos`. It serves full KV,
    where a request reserves its context, and HiSparse, where it reserves B slots a layer.
    """

    def __init__(self, config: Config):
        self._footprint = Footprint(config)
        self._device_budget = int(config.engine.device_kv_budget) - self._footprint.workspace
        self._host_budget = int(config.engine.host_kv_budget)
        self._held: dict[int, tuple[int, int]] = {}
        self._device_used = 0
        self._host_used = 0

    def refusal(self, prompt_len: int, max_new_tokens: int) -> str | None:
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

    def reserve(self, request_id: int, prompt_len: int, max_new_tokens: int) -> bool:
        assert request_id not in self._held
        need = self._footprint.request(prompt_len + max_new_tokens)
        if self._device_used + need.device > self._device_budget or (self._host_used + need.host > self._host_budget):
            return False
        self._held[request_id] = (need.device, need.host)
        self._device_used += need.device
        self._host_used += need.host
        return True

    def release(self, request_id: int) -> None:
        device, host = self._held.pop(request_id)
        self._device_used -= device
        self._host_used -= host

    @property
    def device_bytes(self) -> int:
        """Reserved now; with no request, nothing (the workspace is not part of it)."""
        return self._device_used

    @property
    def host_bytes(self) -> int:
        return self._host_used
