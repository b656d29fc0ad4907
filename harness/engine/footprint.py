"""Bytes a request holds on the device and in the host pool, from the config alone.

The scheduler admits by these numbers, `dry_run` prints them, the KV side is held to them by a test.
Selection state and metadata count against the device budget as the records do.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.engine.kv.sharing import slot_owners
from harness.engine.selection_bytes import selection_parts
from harness.schema import Config, Family, ModelConfig, OffloadSystem


class KVBytes(NamedTuple):
    """What one request holds, in bytes."""

    records: int  # on the device
    selection_state: int  # on the device
    metadata: int  # on the device: page tables, slot positions, LRU order
    host: int  # in the host pool

    @property
    def device(self) -> int:
        return self.records + self.selection_state + self.metadata


def record_width(model: ModelConfig) -> int:
    """Elements of one record in one layer: latent + rope key (MLA), keys and values (GQA), or the one vector that is
    both (csa)."""
    if model.family is Family.csa:
        assert model.head_dim is not None
        return model.head_dim
    if model.family is Family.mla:
        assert model.kv_lora_rank is not None
        assert model.qk_rope_head_dim is not None
        return model.kv_lora_rank + model.qk_rope_head_dim
    assert model.num_kv_heads is not None
    assert model.head_dim is not None
    return 2 * model.num_kv_heads * model.head_dim


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class Footprint:
    """Sizes of one cell. `request(n)` is what a request of n tokens, prompt and output, reserves."""

    def __init__(self, config: Config):
        model = config.model
        self.num_layers = len(model.managed_layers)
        self.tokens_per_record = model.record_tokens or 1
        self.record_bytes = record_width(model) * model.dtype.num_bytes
        self.page_size = config.engine.page_size
        self.system = config.offload.system
        self.cache_slots = config.offload.cache_slots or 0
        self.num_slot_states = len(set(slot_owners(config))) if self.system.keeps_slots else 0
        self.context_len = config.context_len
        self.top_k = config.top_k
        self._state_parts = selection_parts(config)
        self._requests: dict[int, KVBytes] = {}  # admission asks for the same lengths again and again

    def num_records(self, tokens: int) -> int:
        """Complete records of a sequence: what the KV side holds of it in each layer."""
        return tokens // self.tokens_per_record

    def request(self, positions: int) -> KVBytes:
        found = self._requests.get(positions)
        if found is None:
            found = self._requests[positions] = self._request(positions)
        return found

    def _request(self, positions: int) -> KVBytes:
        pages = ceil_div(self.num_records(positions), self.page_size)
        page_table = 4 * pages
        state = 0
        for part in self._state_parts:
            state += part.of(positions)
        token_bytes = self.num_layers * self.record_bytes
        if self.system is OffloadSystem.full_kv:
            return KVBytes(
                records=pages * self.page_size * token_bytes,
                selection_state=state,
                metadata=page_table,
                host=0,
            )
        slots = self.cache_slots + 1  # and the newest position's
        return KVBytes(
            records=slots * token_bytes,
            selection_state=state,
            metadata=page_table + 8 * self.num_slot_states * self.cache_slots,
            host=pages * self.page_size * token_bytes,
        )

    def sent_to_host(self, prompt: int, output: int) -> tuple[int, int]:
        """Bytes that a request of so many tokens stages in prefill and writes through in decode.

        The last token's record is never computed, so nothing is sent for it. What comes back depends on hits.
        """
        if not self.system.offloads:
            return 0, 0
        staged, total = self.num_records(prompt), self.num_records(prompt + output - 1)
        layers = self.num_layers * self.record_bytes
        return staged * layers, (total - staged) * layers

    @property
    def workspace(self) -> int:
        """Device bytes an offload system needs besides its requests: one layer's records of the request
        in prefill, read back from the host pool for the attention of its next chunk."""
        return self.num_records(self.context_len) * self.record_bytes if self.system.offloads else 0
