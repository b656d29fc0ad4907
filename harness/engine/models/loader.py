"""The model of a cell, with weights from a seed or from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch

from harness.engine.device import CPU, weights_to
from harness.engine.models.base import Model
from harness.engine.models.checkpoint import gqa_from_folder, mla_from_folder
from harness.engine.models.csa import CSAModel
from harness.engine.models.gqa import GQAModel
from harness.engine.models.layers import INVARIANT_ROWS, Linear, attend_slots, batch_invariant_attend
from harness.engine.models.mla import MLAModel
from harness.engine.models.random_csa import random_csa
from harness.engine.models.random_weights import random_gqa, random_mla
from harness.schema import Config, Family
from harness.weights import check_same_model


def load_model(config: Config, folder: Path | None, device: torch.device = CPU) -> Model:
    """The cell's model on a device; `folder` holds its weights (None: random).

    Raises ValueError when the folder is incomplete or holds another model than the config describes.
    """
    model = config.model
    invariant = config.engine.batch_invariant
    linear = Linear(INVARIANT_ROWS if invariant else 1)
    attend = batch_invariant_attend() if invariant else attend_slots
    if folder is not None:
        check_same_model(model, folder)
    if model.family is Family.csa:
        assert folder is None, "check_same_model knows no model type of this family"
        return CSAModel(config, weights_to(random_csa(model), device), linear)
    if model.family is Family.mla:
        mla = random_mla(model) if folder is None else mla_from_folder(model, folder)
        return MLAModel(config, weights_to(mla, device), linear, attend)
    gqa = random_gqa(model) if folder is None else gqa_from_folder(model, folder)
    return GQAModel(model, weights_to(gqa, device), config.context_len, linear, attend)
