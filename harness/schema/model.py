"""What a model is, and what selects its positions."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from omegaconf import MISSING

from harness.schema.kinds import DType, Family, RouterKind, SelectorKind


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """A decoder-only transformer. Fields that another family needs stay null."""

    name: str = MISSING
    family: Family = MISSING
    weights: str = "random"
    """`random` (from `seed`), `fetch:NAME` (see `python -m harness.fetch`), or a Hugging Face folder; for sglang and
    external also `hf:ORG/NAME` (a name or a folder that only the server's nodes know)."""
    seed: int = 0
    dtype: DType = DType.float32
    num_layers: int = MISSING
    hidden_size: int = MISSING
    num_heads: int = MISSING
    intermediate_size: int | None = None
    """Width of the dense MLP; null where every layer has experts."""
    vocab_size: int = MISSING
    max_positions: int = MISSING
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_embeddings: bool = False
    # experts, in every layer from `num_dense_layers` on; without `num_experts` all layers are dense
    num_experts: int | None = None
    experts_per_token: int | None = None
    expert_intermediate_size: int | None = None
    num_shared_experts: int = 0
    """Experts that every token uses, computed as one of their joint width."""
    num_dense_layers: int = 0
    router: RouterKind = RouterKind.softmax
    normalize_routing: bool = True
    """Whether the weights of a token's experts are made to sum to 1, before `routed_scale`."""
    routed_scale: float = 1.0
    expert_groups: int = 1
    """Experts are chosen among those of the `groups_per_token` best groups (DeepSeek-V3, section 2.1.2)."""
    groups_per_token: int = 1
    # GQA
    num_kv_heads: int | None = None
    head_dim: int | None = None
    qk_norm: bool = False
    """Whether queries and keys are normalised per head before they are rotated (Qwen3)."""
    # MLA; csa has q_lora_rank and qk_rope_head_dim too
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    # csa (DeepSeek-V4); the head width is head_dim
    compress_ratios: list[int] | None = None
    """Tokens per compressed entry of each layer, 0 for one with the sliding window only. Entries of `record_tokens`
    tokens are the managed records, selected by the indexer; longer ones stay on the device and are all attended to.
    Those at or beyond `num_layers` do not count."""
    record_tokens: int | None = None
    window: int | None = None
    """Newest positions that every layer attends to in full."""
    compress_rope_theta: float | None = None
    """Rotary base of the layers with compressed entries; `rope_theta` is that of the others."""
    out_groups: int | None = None
    out_lora_rank: int | None = None
    # the indexer of DSA and of csa
    index_top_k: int | None = None
    index_num_heads: int | None = None
    index_head_dim: int | None = None
    index_rope_head_dim: int = 0
    """Leading part of the index queries and keys that is rotated (MLA; csa rotates `qk_rope_head_dim` at the end)."""
    index_dtype: DType | None = None
    """Of the stored index keys; null: the model's. DeepSeek and GLM store them in a byte per element."""
    index_anchors: list[int] | None = None
    """Layers that run the indexer; each other one reuses the selection of the nearest before it (IndexShare).
    null: every layer. Those at or beyond `num_layers` do not count, so that a pattern survives a smaller model."""
    weight_bytes: float | None = None
    """Bytes a parameter of the linear layers takes as it is served (1 for FP8), for planning and simulation; null:
    those of `dtype`, which the records have in any case."""
    expert_weight_bytes: float | None = None
    """Likewise for routed experts where they are smaller; null: `weight_bytes`."""
    # random weights only
    embed_common: float = 0.0
    """Share of each random embedding that is one common direction: makes selections overlap from step to step."""

    def has_experts(self, layer: int) -> bool:
        return self.num_experts is not None and layer >= self.num_dense_layers

    @property
    def managed_layers(self) -> list[int]:
        """Layers whose records the KV side places: all, but for csa those with entries of `record_tokens`."""
        if self.compress_ratios is None:
            return list(range(self.num_layers))
        return [i for i, ratio in enumerate(self.compress_ratios[: self.num_layers]) if ratio == self.record_tokens]

    def anchor_of(self, layer: int) -> int:
        """The layer whose selection this one uses: itself, or the nearest anchor before it."""
        anchors = self.index_anchors  # they rise from 0: harness.model_rules
        return layer if anchors is None else anchors[bisect_right(anchors, layer) - 1]


@dataclass(kw_only=True, slots=True)
class SelectorConfig:
    kind: SelectorKind = MISSING
    top_k: int | None = None
    """Records a layer may attend to (k): positions, or for `nsa` compressed entries. null: the model's own
    `index_top_k`; must be null for `dense`."""
    page_size: int = 16
    """Quest only: positions per page."""
    sink: int = 4
    """Window only: first positions that are always attended to, of the k."""
