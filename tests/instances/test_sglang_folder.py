"""config.json of random weights: read back by `harness.hf_config`, whose source is Hugging Face's own configs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from harness.config import load_cells
from harness.hf_config import model_fields
from harness.instances.sglang_folder import config_folder, hf_fields, write_config_folder
from harness.schema import Config


def planned(model: str, selector: str) -> Config:
    overrides = [f"model={model}", f"selector={selector}", "offload=full_kv", "engine=sglang", "platform=h200x8"]
    sizes = ["engine.device_kv_budget=1GB", "workload.input_len=64", "workload.output_len=8", "engine.context_len=8192"]
    return load_cells(["experiment=quickstart", *overrides, *sizes, "tracker=none"])[0]


@pytest.mark.parametrize(
    ("model", "selector"),
    [("glm51", "dsa"), ("glm52", "dsa"), ("deepseek_v32", "dsa"), ("qwen3_30b_a3b", "dense"), ("qwen3_0_6b", "dense")],
)
def test_it_says_what_the_config_says(
    model: str, selector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISPARSE_CACHE", str(tmp_path))
    config = planned(model, selector)
    config.model.weight_bytes = None  # the reader has no word for quantised checkpoints
    folder = write_config_folder(config)
    assert folder == config_folder(config) and [path.name for path in folder.iterdir()] == ["config.json"]
    for key, value in model_fields(folder).items():
        assert getattr(config.model, key) == value, key
    assert AutoConfig.from_pretrained(folder).num_hidden_layers == config.model.num_layers
    assert write_config_folder(config) == folder  # again: the same


def test_deepseek_v4_is_read_by_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISPARSE_CACHE", str(tmp_path))
    config = planned("deepseek_v4_flash", "nsa")
    found = AutoConfig.from_pretrained(write_config_folder(config))
    kinds = {4: "compressed_sparse_attention", 128: "heavily_compressed_attention", 0: "sliding_attention"}
    assert config.model.compress_ratios is not None
    assert found.layer_types == [kinds[ratio] for ratio in config.model.compress_ratios]
    assert (found.index_topk, found.sliding_window, found.head_dim) == (512, 128, 512)


def test_fp8_weights_are_declared() -> None:
    assert hf_fields(planned("glm51", "dsa").model)["quantization_config"]["quant_method"] == "fp8"


def test_other_numbers_are_another_folder() -> None:
    config = planned("glm51", "dsa")
    before = config_folder(config)
    config.model.num_layers = 4
    assert config_folder(config) != before
    assert json.dumps(hf_fields(config.model))
