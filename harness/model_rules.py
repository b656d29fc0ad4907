"""What a model's numbers must satisfy together, and which selectors it can run: part of `harness.validate`."""

from __future__ import annotations

from collections.abc import Iterator

from harness.schema import Config, DType, Family, ModelConfig, SelectorKind

SELECTORS = {
    Family.mla: (SelectorKind.dense, SelectorKind.dsa, SelectorKind.exact_topk, SelectorKind.window),
    Family.gqa: (SelectorKind.dense, SelectorKind.quest, SelectorKind.exact_topk, SelectorKind.window),
    Family.csa: (SelectorKind.nsa,),
}

_NEEDS = {
    Family.mla: ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    Family.gqa: ("num_kv_heads", "head_dim"),
    Family.csa: (
        *("head_dim", "q_lora_rank", "qk_rope_head_dim", "window", "record_tokens", "compress_ratios"),
        *("compress_rope_theta", "out_groups", "out_lora_rank", "index_num_heads", "index_head_dim"),
    ),
}
_ROTATED = {Family.mla: "qk_rope_head_dim", Family.gqa: "head_dim", Family.csa: "qk_rope_head_dim"}


def model_problem(model: ModelConfig) -> str | None:
    """The first thing that is wrong with a model's numbers, which are each within their own bounds; else None."""
    for key in _NEEDS[model.family]:
        if getattr(model, key) is None:
            return f"model.{key} must be set for model.family={model.family.value}"
    checks = (_shape, _experts, _indexer, *((_compressed,) if model.family is Family.csa else ()))
    return next((problem for check in checks for problem in check(model)), None)


def _shape(model: ModelConfig) -> Iterator[str]:
    if model.dtype is DType.float8_e4m3fn:
        yield "model.dtype=float8_e4m3fn is for index keys (model.index_dtype): choose float32 or bfloat16"
    rotated = _ROTATED[model.family]
    if getattr(model, rotated) % 2:
        yield f"model.{rotated}={getattr(model, rotated)} must be even: it is rotated in two halves"
    if model.family is Family.gqa and model.num_heads % (model.num_kv_heads or 1):
        yield f"model.num_heads={model.num_heads} must be a multiple of model.num_kv_heads={model.num_kv_heads}"
    if model.intermediate_size is None and not model.has_experts(0):
        yield "model.intermediate_size must be set: some layers have no experts"


def _experts(model: ModelConfig) -> Iterator[str]:
    if model.num_experts is None:
        return
    for key in ("experts_per_token", "expert_intermediate_size"):
        if getattr(model, key) is None:
            yield f"model.{key} must be set for model.num_experts={model.num_experts}"
            return
    if model.num_experts % model.expert_groups:
        yield f"model.num_experts={model.num_experts} must be a multiple of expert_groups={model.expert_groups}"
    if model.groups_per_token > model.expert_groups:
        yield f"model.groups_per_token={model.groups_per_token} is more than expert_groups={model.expert_groups}"
    size = model.num_experts // model.expert_groups
    if model.expert_groups > 1 and size < 2:
        yield f"model.expert_groups={model.expert_groups} leaves one expert a group: a group is ranked by its best two"
    if (model.experts_per_token or 0) > model.groups_per_token * size:
        yield (
            f"model.experts_per_token={model.experts_per_token} is more than the {model.groups_per_token * size} "
            "experts of the groups a token may use"
        )


def _indexer(model: ModelConfig) -> Iterator[str]:
    anchors = model.index_anchors
    if anchors is not None and (not anchors or anchors[0] != 0 or sorted(set(anchors)) != anchors):
        yield f"model.index_anchors={anchors} must begin with layer 0 and rise: a shared layer follows an anchor"
    width = model.index_rope_head_dim if model.index_head_dim is None else model.index_head_dim
    if model.index_rope_head_dim % 2 or model.index_rope_head_dim > width:
        yield (
            f"model.index_rope_head_dim={model.index_rope_head_dim} must be even and at most "
            f"index_head_dim={model.index_head_dim}"
        )


def _compressed(model: ModelConfig) -> Iterator[str]:
    ratios = model.compress_ratios or []
    rope = model.qk_rope_head_dim or 0
    if len(ratios) < model.num_layers or min(ratios, default=0) < 0:
        yield f"model.compress_ratios must give each of the {model.num_layers} layers its tokens per entry, or 0"
    if not model.managed_layers:
        yield (
            f"model.compress_ratios has no layer with entries of record_tokens={model.record_tokens} among the "
            f"{model.num_layers}: there would be nothing to select"
        )
    if rope > min(model.head_dim or 0, model.index_head_dim or 0):
        widths = f"head_dim={model.head_dim} and index_head_dim={model.index_head_dim}"
        yield f"model.qk_rope_head_dim={rope} must fit {widths}, whose ends it rotates"
    if model.num_heads % (model.out_groups or 1):
        yield f"model.num_heads={model.num_heads} must be a multiple of model.out_groups={model.out_groups}"


def complete_selector(config: Config) -> str | None:
    """Fill the selector's k from the model, in place; what keeps the two from running together, else None."""
    selector, model = config.selector, config.model
    valid = SELECTORS[model.family]
    if selector.kind not in valid:
        return (
            f"selector={selector.kind.value} cannot run on model={model.name} (family {model.family.value}); "
            f"choose from {', '.join(kind.value for kind in valid)}"
        )
    if selector.kind is SelectorKind.dense:
        if selector.top_k is not None:
            return f"selector.top_k={selector.top_k} must be null for selector=dense, which takes all"
        return None
    if selector.kind in (SelectorKind.dsa, SelectorKind.nsa):
        if model.index_num_heads is None or model.index_head_dim is None:
            return f"model={model.name} has no indexer: set model.index_num_heads and index_head_dim"
        selector.top_k = model.index_top_k if selector.top_k is None else selector.top_k
    return _top_k_problem(config)


def _top_k_problem(config: Config) -> str | None:
    selector = config.selector
    if selector.top_k is None:
        return f"selector.top_k must be set for selector={selector.kind.value}"
    per_record = config.model.record_tokens if selector.kind is SelectorKind.nsa else None
    most = config.context_len // (per_record or 1)
    if not 1 <= selector.top_k <= most:
        entries = f" ({most} entries of {per_record} tokens)" if per_record else ""
        return (
            f"selector.top_k={selector.top_k} must be between 1 and the context, "
            f"engine.context_len={config.context_len}{entries}"
        )
    if selector.kind is SelectorKind.quest and selector.top_k % selector.page_size:
        return (
            f"selector.top_k={selector.top_k} must be a multiple of selector.page_size={selector.page_size}, "
            "since Quest takes whole pages"
        )
    if selector.kind is SelectorKind.window and selector.sink >= selector.top_k:
        return f"selector.sink={selector.sink} must be below selector.top_k={selector.top_k}: the newest is taken too"
    return None
