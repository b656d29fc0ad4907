"""A config.json for SGLang's dummy weights: what `model.weights=random` means with engine=sglang.

The inverse of `harness.hf_config`, beside DeepSeek-V4, whose checkpoints that does not read. Such a model has a real
one's shapes, memory and steps; its selections are those of noise, so hit rates say nothing about trained models.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from harness.fetch import cache_dir
from harness.schema import Config, Family, ModelConfig, RouterKind

Fields = dict[str, Any]
_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
_SCORES = {RouterKind.softmax: "softmax", RouterKind.sigmoid: "sigmoid", RouterKind.sqrt_softplus: "sqrtsoftplus"}


def config_folder(config: Config) -> Path:
    """Where the config.json of this model is or will be, in the cache; one folder for each content."""
    text = _text(config)
    return cache_dir() / "dummy" / f"{config.model.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def write_config_folder(config: Config) -> Path:
    """Make the folder where it is not there. Raises OSError."""
    folder = config_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write(_text(config))
    os.replace(file.name, folder / "config.json")
    return folder


def hf_fields(model: ModelConfig) -> Fields:
    """What a Hugging Face config.json says of this model."""
    common: Fields = {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_positions,
        "rms_norm_eps": model.rms_norm_eps,
        "tie_word_embeddings": model.tie_embeddings,
        "hidden_act": "silu",
        "torch_dtype": model.dtype.value,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    own = {Family.gqa: _gqa, Family.mla: _mla, Family.csa: _csa}[model.family](model)
    quantized = {"quantization_config": _FP8} if model.weight_bytes == 1 else {}
    return common | own | quantized


def _text(config: Config) -> str:
    return json.dumps(hf_fields(config.model), indent=1)


def _named(architecture: str, model_type: str) -> Fields:
    return {"architectures": [architecture], "model_type": model_type}


def _experts(model: ModelConfig) -> Fields:
    return {
        "n_routed_experts": model.num_experts,
        "num_experts_per_tok": model.experts_per_token,
        "moe_intermediate_size": model.expert_intermediate_size,
        "n_shared_experts": model.num_shared_experts,
        "first_k_dense_replace": model.num_dense_layers,
        "scoring_func": _SCORES[model.router],
        "topk_method": "noaux_tc",
        "norm_topk_prob": model.normalize_routing,
        "routed_scaling_factor": model.routed_scale,
        "n_group": model.expert_groups,
        "topk_group": model.groups_per_token,
    }


def _gqa(model: ModelConfig) -> Fields:
    fields: Fields = {
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size or model.expert_intermediate_size,
        "rope_theta": model.rope_theta,
        "rope_parameters": _rope(model),
    }
    if model.num_experts is not None:
        return {
            **_named("Qwen3MoeForCausalLM", "qwen3_moe"),
            **fields,
            "num_experts": model.num_experts,
            "num_experts_per_tok": model.experts_per_token,
            "moe_intermediate_size": model.expert_intermediate_size,
            "norm_topk_prob": model.normalize_routing,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if model.qk_norm:
        return _named("Qwen3ForCausalLM", "qwen3") | fields
    return _named("LlamaForCausalLM", "llama") | fields


def _mla(model: ModelConfig) -> Fields:
    copied = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "intermediate_size")
    fields = {
        **{key: getattr(model, key) for key in copied},
        "num_key_value_heads": model.num_heads,
        "rope_theta": model.rope_theta,
        "rope_parameters": _rope(model),
        **_experts(model),
    }
    if model.index_num_heads is None:
        return _named("DeepseekV3ForCausalLM", "deepseek_v3") | fields
    fields |= {
        "index_topk": model.index_top_k,
        "index_n_heads": model.index_num_heads,
        "index_head_dim": model.index_head_dim,
    }
    if model.expert_groups > 1:
        return _named("DeepseekV32ForCausalLM", "deepseek_v32") | fields
    if model.index_anchors is not None:
        own = [model.anchor_of(layer) == layer for layer in range(model.num_layers)]
        fields["index_topk_pattern"] = "".join("F" if runs else "S" for runs in own)
        fields["indexer_types"] = ["full" if runs else "shared" for runs in own]
    return _named("GlmMoeDsaForCausalLM", "glm_moe_dsa") | fields


def _csa(model: ModelConfig) -> Fields:
    assert model.qk_rope_head_dim is not None
    assert model.head_dim is not None
    assert model.compress_ratios is not None
    return {
        **_named("DeepseekV4ForCausalLM", "deepseek_v4"),
        **{k: v for k, v in _experts(model).items() if k not in ("first_k_dense_replace", "n_group", "topk_group")},
        "num_key_value_heads": 1,
        "head_dim": model.head_dim,
        "q_lora_rank": model.q_lora_rank,
        "qk_rope_head_dim": model.qk_rope_head_dim,
        "sliding_window": model.window,
        "compress_ratios": model.compress_ratios[: model.num_layers],
        "compress_rope_theta": model.compress_rope_theta,
        "o_groups": model.out_groups,
        "o_lora_rank": model.out_lora_rank,
        "index_topk": model.index_top_k,
        "index_n_heads": model.index_num_heads,
        "index_head_dim": model.index_head_dim,
        "rope_theta": model.rope_theta,
        # what the planner does not compute with, as the published checkpoints have it
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "num_hash_layers": 3,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "swiglu_limit": 10.0,
        "expert_dtype": "fp4" if (model.expert_weight_bytes or 1) < 1 else "fp8",
    }


def _rope(model: ModelConfig) -> Fields:
    return {"rope_type": "default", "rope_theta": model.rope_theta}
