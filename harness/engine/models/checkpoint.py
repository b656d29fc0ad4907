"""Weights of a Hugging Face folder, sharded or not, as the model families hold them.

Rotary channels that a family's checkpoints keep as neighbouring pairs are put into halves here, in queries and keys
alike, which changes no product of the two; so the engine knows one rotation.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from harness.engine.models.gqa import GQALayer, GQAWeights
from harness.engine.models.mla import Indexer, MLALayer, MLAWeights
from harness.engine.models.mlp import Dense, Experts
from harness.hf_config import read_config
from harness.schema import ModelConfig
from harness.weights import tensor_files

INDEX_IN_PAIRS = "glm_moe_dsa"  # GLM's indexer rotates pairs, as MLA does everywhere; DeepSeek's rotates halves


class Checkpoint:
    """Tensors by name, each file opened once."""

    def __init__(self, folder: Path, dtype: torch.dtype):
        from safetensors import safe_open

        files = tensor_files(folder)
        assert files is not None, "check_same_model was not called"
        self._folder, self._dtype = folder, dtype
        opened = {path: safe_open(path, framework="pt") for path in set(files.values())}
        self._files = {name: file for path, file in opened.items() for name in file.keys()}  # noqa: SIM118  (no mapping)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Raises ValueError for a tensor that the folder has not."""
        if name not in self._files:
            raise ValueError(f"{self._folder} has no tensor {name}: its weights are incomplete or another model's")
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.to(dtype or self._dtype)

    def weight(self, *path: str) -> Tensor:
        return self.get(".".join((*path, "weight")))

    def joined(self, base: str, *names: str) -> Tensor:
        """Several matrices of the same input, one below the other."""
        return torch.cat([self.weight(base, name) for name in names])


def gqa_from_folder(model: ModelConfig, folder: Path) -> GQAWeights:
    file = Checkpoint(folder, getattr(torch, model.dtype.value))

    def layer(i: int) -> GQALayer:
        base = f"model.layers.{i}"
        attention = f"{base}.self_attn"
        return GQALayer(
            attn_norm=file.weight(base, "input_layernorm"),
            qkv=file.joined(attention, "q_proj", "k_proj", "v_proj"),
            out=file.weight(attention, "o_proj"),
            q_norm=file.weight(attention, "q_norm") if model.qk_norm else None,
            k_norm=file.weight(attention, "k_norm") if model.qk_norm else None,
            mlp_norm=file.weight(base, "post_attention_layernorm"),
            mlp=_mlp(model, file, i),
        )

    embed = file.weight("model.embed_tokens")
    head = embed if model.tie_embeddings else file.weight("lm_head")
    return GQAWeights(embed, [layer(i) for i in range(model.num_layers)], file.weight("model.norm"), head)


def mla_from_folder(model: ModelConfig, folder: Path) -> MLAWeights:
    assert model.kv_lora_rank is not None
    assert model.qk_nope_head_dim is not None
    assert model.qk_rope_head_dim is not None
    file = Checkpoint(folder, getattr(torch, model.dtype.value))
    pairs = read_config(folder)["model_type"] == INDEX_IN_PAIRS
    rank, nope, rope = model.kv_lora_rank, model.qk_nope_head_dim, model.qk_rope_head_dim

    def layer(i: int) -> MLALayer:
        base = f"model.layers.{i}"
        attention = f"{base}.self_attn"
        kv_up = file.weight(attention, "kv_b_proj").view(model.num_heads, -1, rank)
        q_up = file.weight(attention, "q_b_proj").view(model.num_heads, nope + rope, -1)
        return MLALayer(
            attn_norm=file.weight(base, "input_layernorm"),
            q_down=file.weight(attention, "q_a_proj"),
            q_norm=file.weight(attention, "q_a_layernorm"),
            q_up=pairs_to_halves(q_up, nope, rope).flatten(0, 1),
            kv_down=pairs_to_halves(file.weight(attention, "kv_a_proj_with_mqa").unsqueeze(0), rank, rope)[0],
            kv_norm=file.weight(attention, "kv_a_layernorm"),
            k_up=kv_up[:, :nope].contiguous(),
            v_up=kv_up[:, nope:].contiguous(),
            out=file.weight(attention, "o_proj"),
            indexer=_indexer(model, file, f"{attention}.indexer", pairs) if _runs_indexer(model, i) else None,
            mlp_norm=file.weight(base, "post_attention_layernorm"),
            mlp=_mlp(model, file, i),
        )

    layers = [layer(i) for i in range(model.num_layers)]
    embed = file.weight("model.embed_tokens")
    head = embed if model.tie_embeddings else file.weight("lm_head")
    return MLAWeights(embed, layers, file.weight("model.norm"), head)


def pairs_to_halves(weight: Tensor, start: int, size: int) -> Tensor:
    """weight [heads, out, in]: of outputs start..start+size, channels 2i and 2i+1 become i and i + size/2."""
    order = torch.arange(weight.shape[1])
    order[start : start + size] = start + torch.arange(size).view(-1, 2).T.flatten()
    return weight[:, order]


def _runs_indexer(model: ModelConfig, layer: int) -> bool:
    return model.index_num_heads is not None and model.anchor_of(layer) == layer


def _indexer(model: ModelConfig, file: Checkpoint, base: str, pairs: bool) -> Indexer:
    assert model.index_num_heads is not None
    q = file.weight(base, "wq_b").view(model.index_num_heads, -1, model.q_lora_rank or 0)
    norm, bias = file.weight(base, "k_norm"), file.get(f"{base}.k_norm.bias")
    k, size = file.weight(base, "wk"), model.index_rope_head_dim
    if pairs:
        q, k = pairs_to_halves(q, 0, size), pairs_to_halves(k.unsqueeze(0), 0, size)[0]
        norm, bias = (pairs_to_halves(v.view(1, -1, 1), 0, size).flatten() for v in (norm, bias))
    return Indexer(q.flatten(0, 1), k, norm, bias, file.weight(base, "weights_proj"))


def _mlp(model: ModelConfig, file: Checkpoint, layer: int) -> Dense | Experts:
    base = f"model.layers.{layer}.mlp"
    if not model.has_experts(layer):
        return _dense(file, base)
    assert model.num_experts is not None
    bias = f"{base}.gate.e_score_correction_bias"
    experts = [_dense(file, f"{base}.experts.{expert}") for expert in range(model.num_experts)]
    return Experts(
        router=file.get(f"{base}.gate.weight", torch.float32),
        bias=file.get(bias, torch.float32) if bias in file else None,
        gate_up=torch.stack([expert.gate_up for expert in experts]),
        down=torch.stack([expert.down for expert in experts]),
        shared=_dense(file, f"{base}.shared_experts") if model.num_shared_experts else None,
    )


def _dense(file: Checkpoint, base: str) -> Dense:
    return Dense(gate_up=file.joined(base, "gate_proj", "up_proj"), down=file.weight(base, "down_proj"))
