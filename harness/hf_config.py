"""What a Hugging Face config.json says, in the words of `harness.schema.ModelConfig`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.schema import Family, RouterKind

Fields = dict[str, Any]


def read_config(folder: Path) -> Fields:
    """config.json as it is. Raises ValueError where there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{path} does not exist: model.weights must name a Hugging Face folder")
    return dict(json.loads(path.read_text()))


def model_fields(folder: Path) -> Fields:
    """Fields of ModelConfig, enums as such, that the folder's config.json decides.

    Raises ValueError for a model type, or a feature of one, that the engine does not compute.
    """
    found = read_config(folder)
    kind = found.get("model_type")
    reader = _READERS.get(kind or "")
    if reader is None:
        raise ValueError(f"{folder}/config.json has model_type={kind!r}; the engine reads {', '.join(_READERS)}")
    for problem in _unsupported(found):
        raise ValueError(f"{folder}/config.json has {problem}, which the engine does not compute")
    return _common(found) | reader(found)


def _unsupported(found: Fields) -> Iterator[str]:
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type != "default":
        yield f"rotary scaling of type {rope_type!r}"
    if found.get("hidden_act", "silu") != "silu":
        yield f"hidden_act={found['hidden_act']!r}"
    for key in ("attention_bias", "mlp_bias", "use_sliding_window", "quantization_config", "mlp_only_layers"):
        if found.get(key):
            yield f"{key}={found[key]!r}"
    if found.get("decoder_sparse_step", 1) != 1:
        yield f"decoder_sparse_step={found['decoder_sparse_step']}"
    if "kv_lora_rank" in found and not found.get("q_lora_rank"):
        yield "queries without a latent (q_lora_rank null)"
    if found.get("rope_interleave") is False:  # checkpoints of MLA are read as pairs (models/checkpoint.py)
        yield "rope_interleave=False"


def _common(found: Fields) -> Fields:
    rope = found.get("rope_parameters") or {}
    return {
        "num_layers": found.get("num_hidden_layers"),
        "hidden_size": found.get("hidden_size"),
        "num_heads": found.get("num_attention_heads"),
        "vocab_size": found.get("vocab_size"),
        "rope_theta": found.get("rope_theta") or rope.get("rope_theta"),
        "rms_norm_eps": found.get("rms_norm_eps"),
        "tie_embeddings": found.get("tie_word_embeddings", False),
    }


def _gqa(found: Fields) -> Fields:
    heads = found.get("num_attention_heads")
    return {
        "family": Family.gqa,
        "num_kv_heads": found.get("num_key_value_heads") or heads,
        "head_dim": found.get("head_dim") or (found.get("hidden_size", 0) // heads if heads else None),
        "intermediate_size": found.get("intermediate_size"),
        "qk_norm": found.get("model_type", "").startswith("qwen3"),
        "num_experts": None,
    }


def _qwen3_moe(found: Fields) -> Fields:
    return _gqa(found) | {
        "intermediate_size": None,
        "num_experts": found.get("num_experts") or found.get("num_local_experts"),
        "experts_per_token": found.get("num_experts_per_tok"),
        "expert_intermediate_size": found.get("moe_intermediate_size"),
        "normalize_routing": found.get("norm_topk_prob", False),
        "router": RouterKind.softmax,
    }


def _mla(found: Fields) -> Fields:
    copied = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "intermediate_size")
    return {key: found.get(key) for key in copied} | {
        "family": Family.mla,
        "num_experts": found.get("n_routed_experts"),
        "experts_per_token": found.get("num_experts_per_tok"),
        "expert_intermediate_size": found.get("moe_intermediate_size"),
        "num_shared_experts": found.get("n_shared_experts"),
        "num_dense_layers": _dense_layers(found),
        "router": RouterKind.sigmoid,
        "normalize_routing": found.get("norm_topk_prob", True),
        "routed_scale": found.get("routed_scaling_factor"),
        "expert_groups": found.get("n_group"),
        "groups_per_token": found.get("topk_group"),
        "index_num_heads": None,
    }


def _dense_layers(found: Fields) -> int | None:
    kinds = found.get("mlp_layer_types")
    if kinds is None:
        return found.get("first_k_dense_replace")
    dense = sum(kind == "dense" for kind in kinds)
    return dense if all(kind == "dense" for kind in kinds[:dense]) else None


def _indexed(found: Fields) -> Fields:
    return _mla(found) | {
        "index_top_k": found.get("index_topk"),
        "index_num_heads": found.get("index_n_heads"),
        "index_head_dim": found.get("index_head_dim"),
        "index_rope_head_dim": found.get("qk_rope_head_dim"),
        "index_anchors": _anchors(found),
    }


def _anchors(found: Fields) -> list[int] | None:
    """Layers that run the indexer: as a list, as a pattern of F and S, or as a frequency; None for all."""
    layers = found.get("num_hidden_layers") or 0
    kinds = found.get("indexer_types") or found.get("index_topk_pattern")
    if kinds is None:
        every, offset = max(found.get("index_topk_freq", 1), 1), found.get("index_skip_topk_offset", 2)
        kinds = ["F" if max(i - offset + 1, 0) % every == 0 else "S" for i in range(layers)]
    anchors = [i for i, kind in enumerate(kinds) if kind in ("F", "full")]
    return None if len(anchors) == layers else anchors


_READERS: dict[str, Callable[[Fields], Fields]] = {
    "llama": _gqa,
    "qwen3": _gqa,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _mla,
    "deepseek_v32": _indexed,
    "glm_moe_dsa": _indexed,
}
