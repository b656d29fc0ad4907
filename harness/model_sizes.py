"""How many parameters a model has and what one token computes with them, from its config alone. Pure arithmetic.

Matrices only: norms, biases and scales of quantised weights are some tenths of a percent.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.schema import Config, Family, ModelConfig


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters by what happens to them when a model is spread over devices."""

    attention: int  # projections of attention and indexer: on every data-parallel rank
    dense: int  # dense MLPs and shared experts
    routed: int  # all routed experts
    embedding: int  # the input embedding; the output's too, where it is not the same
    head: int  # the output projection
    absorbed: int  # of `attention`: the latent's expansion, which decode multiplies into queries and outputs (MLA)
    share_routed: float  # of the routed experts that one token uses

    @property
    def total(self) -> int:
        return self.attention + self.dense + self.routed + self.embedding

    @property
    def active(self) -> float:
        """Parameters that one token multiplies with, the output projection included."""
        return self.attention + self.dense + self.routed * self.share_routed + self.head

    def coverage(self, tokens: float) -> float:
        """Share of the routed experts that at least one of so many tokens uses, if each token's are drawn at random."""
        return 1.0 - (1.0 - self.share_routed) ** tokens if self.routed else 0.0


def model_size(model: ModelConfig) -> ModelSize:
    """Sizes of a model whose numbers have passed `model_rules`."""
    h, layers = model.hidden_size, range(model.num_layers)
    experts = sum(model.has_experts(layer) for layer in layers)
    attention = sum(_attention(model) + _indexer(model, layer) for layer in layers)
    routed = shared = 0
    if model.num_experts is not None:
        assert model.expert_intermediate_size is not None
        one = 3 * h * model.expert_intermediate_size
        routed = experts * model.num_experts * one
        shared = experts * (model.num_shared_experts * one + h * model.num_experts)  # and the router
    dense = (model.num_layers - experts) * 3 * h * (model.intermediate_size or 0)
    head = model.vocab_size * h
    return ModelSize(
        attention=attention,
        dense=dense + shared,
        routed=routed,
        embedding=head if model.tie_embeddings else 2 * head,
        head=head,
        absorbed=model.num_layers * _expansion(model) if model.family is Family.mla else 0,
        share_routed=(model.experts_per_token or 0) / (model.num_experts or 1),
    )


def weight_bytes(config: Config) -> float:
    """Bytes a parameter of the linear layers takes as it is served."""
    return config.model.weight_bytes or config.model.dtype.num_bytes


def expert_bytes(config: Config) -> float:
    """Bytes a parameter of the routed experts takes as it is served."""
    return config.model.expert_weight_bytes or weight_bytes(config)


def rank_devices(config: Config) -> float:
    """Devices of one data-parallel rank, of a completed simulated or sglang config."""
    return config.devices / (config.engine.data_parallel or 1)


def device_weights(config: Config) -> float:
    """Bytes of weights on one device: a rank's attention shared among its devices, all else among all of them.

    Embeddings have the model's dtype, as does a second copy of what decode absorbs where the weights are smaller
    (SGLang keeps both).
    """
    size, per, whole = model_size(config.model), weight_bytes(config), config.model.dtype.num_bytes
    attention = size.attention * per + (size.absorbed * whole if per < whole else 0)
    all_else = size.dense * per + size.routed * expert_bytes(config) + size.embedding * whole
    return attention / rank_devices(config) + all_else / config.devices


def _attention(model: ModelConfig) -> int:
    h, heads = model.hidden_size, model.num_heads
    if model.family is Family.gqa:
        assert model.num_kv_heads is not None
        assert model.head_dim is not None
        return 2 * h * model.head_dim * (heads + model.num_kv_heads)
    assert model.q_lora_rank is not None
    assert model.qk_rope_head_dim is not None
    if model.family is Family.csa:
        assert model.head_dim is not None
        assert model.out_groups is not None
        assert model.out_lora_rank is not None
        width = heads * model.head_dim
        out = width * model.out_lora_rank + model.out_groups * model.out_lora_rank * h
        return model.q_lora_rank * (h + width) + h * model.head_dim + out
    assert model.kv_lora_rank is not None
    assert model.qk_nope_head_dim is not None
    assert model.v_head_dim is not None
    queries = model.q_lora_rank * (h + heads * (model.qk_nope_head_dim + model.qk_rope_head_dim))
    latent = h * (model.kv_lora_rank + model.qk_rope_head_dim)
    return queries + latent + _expansion(model) + heads * model.v_head_dim * h


def _expansion(model: ModelConfig) -> int:
    """MLA: from the latent to keys and values, in one layer."""
    assert model.kv_lora_rank is not None
    assert model.qk_nope_head_dim is not None
    assert model.v_head_dim is not None
    return model.kv_lora_rank * model.num_heads * (model.qk_nope_head_dim + model.v_head_dim)


def _indexer(model: ModelConfig, layer: int) -> int:
    """The indexer's projections where the layer runs one, and for csa the compressors' values and gates."""
    if model.index_head_dim is None or model.index_num_heads is None or model.q_lora_rank is None:
        return 0
    h = model.hidden_size
    queries = model.q_lora_rank * model.index_num_heads * model.index_head_dim + h * model.index_num_heads
    if model.compress_ratios is None:
        return queries + h * model.index_head_dim if model.anchor_of(layer) == layer else 0
    assert model.head_dim is not None
    ratio = model.compress_ratios[layer]
    if ratio == 0:
        return 0
    if ratio != model.record_tokens:
        return 2 * h * model.head_dim
    return queries + 2 * 2 * h * (model.head_dim + model.index_head_dim)  # overlapping: two series
