"""Model weights from a seed or from a Hugging Face folder (config.json + model.safetensors)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from harness.engine.models.base import Model
from harness.engine.models.gqa import GQALayer, GQAModel, GQAWeights
from harness.engine.models.layers import INVARIANT_ROWS, Linear, attend_one_by_one, attend_selected
from harness.engine.models.mla import MLAModel
from harness.engine.models.random_weights import random_gqa, random_mla
from harness.schema import Config, Family, ModelConfig
from harness.weights import check_same_model


def load_model(config: Config, folder: Path | None) -> Model:
    """The cell's model; `folder` holds its weights (None: random).

    Raises ValueError when the folder is incomplete or holds another model than the config describes.
    """
    model = config.model
    invariant = config.engine.batch_invariant
    linear = Linear(INVARIANT_ROWS if invariant else 1)
    attend = attend_one_by_one if invariant else attend_selected
    if folder is not None:
        check_same_model(model, folder)
    if model.family is Family.mla:
        return MLAModel(model, random_mla(model), config.context_len, linear, attend)
    weights = random_gqa(model) if folder is None else _llama_weights(model, folder)
    return GQAModel(model, weights, config.context_len, linear, attend)


def _llama_weights(model: ModelConfig, folder: Path) -> GQAWeights:
    from safetensors import safe_open

    dtype = getattr(torch, model.dtype.value)
    with safe_open(folder / "model.safetensors", framework="pt") as file:

        def get(name: str) -> Tensor:
            return file.get_tensor(name).to(dtype)

        def layer(i: int) -> GQALayer:
            base = f"model.layers.{i}"
            attention, mlp = f"{base}.self_attn", f"{base}.mlp"
            return GQALayer(
                attn_norm=get(f"{base}.input_layernorm.weight"),
                qkv=torch.cat([get(f"{attention}.{x}_proj.weight") for x in "qkv"]),
                out=get(f"{attention}.o_proj.weight"),
                mlp_norm=get(f"{base}.post_attention_layernorm.weight"),
                gate_up=torch.cat([get(f"{mlp}.{x}_proj.weight") for x in ("gate", "up")]),
                down=get(f"{mlp}.down_proj.weight"),
            )

        embed = get("model.embed_tokens.weight")
        head = embed if model.tie_embeddings else get("lm_head.weight")
        layers = [layer(i) for i in range(model.num_layers)]
        return GQAWeights(embed, layers, get("model.norm.weight"), head)
