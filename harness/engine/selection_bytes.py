"""Device bytes of the selection state and of whatever else a request keeps on the device beside its records.

Pure arithmetic, like `harness.engine.footprint`, which counts them against the device budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.schema import Config, Family, ModelConfig, SelectorKind


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of all layers for every `tokens` tokens begun, or once per request where that is None."""

    num_bytes: int
    tokens: int | None

    def of(self, tokens: int) -> int:
        return self.num_bytes * (1 if self.tokens is None else -(-tokens // self.tokens))


def attention_key_shape(model: ModelConfig) -> tuple[int, int]:
    """KV heads and width of the keys that decode attends with: for MLA the whole record, read by all heads."""
    if model.family is Family.mla:
        assert model.kv_lora_rank is not None
        assert model.qk_rope_head_dim is not None
        return 1, model.kv_lora_rank + model.qk_rope_head_dim
    assert model.num_kv_heads is not None
    assert model.head_dim is not None
    return model.num_kv_heads, model.head_dim


def selection_parts(config: Config) -> list[Part]:
    """What the selector, and for csa the model, keeps of one request."""
    model, kind = config.model, config.selector.kind
    width = model.dtype.num_bytes
    if kind is SelectorKind.dsa:
        anchors = sum(model.anchor_of(layer) == layer for layer in range(model.num_layers))
        return [Part(anchors * _index_key_bytes(model), 1)]
    if kind is SelectorKind.nsa:
        return _compressed_parts(model)
    if kind in (SelectorKind.quest, SelectorKind.exact_topk):
        heads, key = attention_key_shape(model)
        keys = model.num_layers * heads * key * width
        return [Part(2 * keys, config.selector.page_size) if kind is SelectorKind.quest else Part(keys, 1)]
    return []


def _index_key_bytes(model: ModelConfig) -> int:
    assert model.index_head_dim is not None
    return model.index_head_dim * (model.index_dtype or model.dtype).num_bytes


def _compressed_parts(model: ModelConfig) -> list[Part]:
    """csa: index keys of the managed entries, entries of longer spans, every layer's sliding window, and the
    compressors' inputs (`models/compressor.py`) of the tokens whose entry is not complete."""
    assert model.compress_ratios is not None
    assert model.record_tokens is not None
    assert model.head_dim is not None
    assert model.index_head_dim is not None
    assert model.window is not None
    width, managed = model.dtype.num_bytes, len(model.managed_layers)
    ratios = model.compress_ratios[: model.num_layers]
    longer = [ratio for ratio in ratios if ratio not in (0, model.record_tokens)]
    overlapping = 2 * 2 * (model.head_dim + model.index_head_dim)  # two series, each of values and gates
    once = model.num_layers * model.window * model.head_dim
    once += managed * 2 * model.record_tokens * overlapping
    once += sum(ratio * 2 * model.head_dim for ratio in longer)
    return [
        Part(managed * _index_key_bytes(model), model.record_tokens),
        *(Part(longer.count(ratio) * model.head_dim * width, ratio) for ratio in sorted(set(longer))),
        Part(once * width, None),
    ]
