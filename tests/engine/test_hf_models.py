"""Hugging Face folders of every model type the engine reads, against transformers on the same weights.

Tiny random models, written by transformers itself; prompts are computed in chunks cut at odd places, then decoded
token by token. Logits are float32 sums in another order: of order 1 here, so they agree to 2e-5.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cells import cell_of
from omegaconf import OmegaConf
from torch import Tensor

from harness.engine.executor import Executor, Generation
from harness.engine.scheduler import Chunk, Plan
from harness.hf_config import model_fields
from harness.schema import Config, SelectorKind
from harness.validate import complete
from harness.weights import check_weights, main

TOLERANCE = 2e-5
PROMPT, NEW = 60, 12
VOCAB = 120
SMALL: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 48, "max_position_embeddings": 256}
SMALL |= {"intermediate_size": 96, "num_attention_heads": 4, "initializer_range": 0.1}
GQA = {**SMALL, "num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
MLA = {**SMALL, **EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 8, "n_shared_experts": 2}
MLA |= {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
MLA |= {"num_hidden_layers": 4, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2}
MLA["rms_norm_eps"] = 1e-6  # transformers norms the latents with it whatever the config says; SGLang and we do not
INDEXED = {**MLA, "index_topk": 16, "index_n_heads": 16, "index_head_dim": 24}  # many: few ties at 0

KINDS: dict[str, tuple[str, dict[str, Any], SelectorKind]] = {
    "llama": ("Llama", {**GQA, "tie_word_embeddings": True}, SelectorKind.dense),
    "qwen3": ("Qwen3", GQA, SelectorKind.dense),
    "qwen3_moe": ("Qwen3Moe", {**GQA, **EXPERTS, "num_experts": 8, "norm_topk_prob": True}, SelectorKind.dense),
    "qwen3_moe_raw": ("Qwen3Moe", {**GQA, **EXPERTS, "num_experts": 8, "norm_topk_prob": False}, SelectorKind.dense),
    "deepseek_v3": ("DeepseekV3", MLA, SelectorKind.dense),
    "deepseek_v32": ("DeepseekV32", INDEXED, SelectorKind.dsa),
    "glm_shared": (
        "GlmMoeDsa",
        {**INDEXED, "indexer_types": ["full", "shared", "full", "shared"], "n_group": 1, "topk_group": 1},
        SelectorKind.dsa,
    ),
}


def judge_of(kind: str) -> Any:
    """A transformers model whose norms, biases and routers are random too: their defaults would hide a mix-up."""
    import transformers

    name, sizes, _ = KINDS[kind]
    torch.manual_seed(len(kind))
    config = getattr(transformers, f"{name}Config")(**sizes)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in key:
                tensor.add_(torch.randn_like(tensor) * 0.2)
            elif "e_score_correction_bias" in key:
                tensor.normal_(0, 0.3)
    return model


def cell_for(folder: Path, selector: SelectorKind, system: str) -> Config:
    config = copy.deepcopy(cell_of("dense_mla", system))
    model = config.model
    model.weights, model.max_positions = str(folder), 256
    for key, value in model_fields(folder).items():
        setattr(model, key, value)
    config.selector.kind, config.selector.top_k = selector, None
    config.offload.cache_slots = 24 if selector is SelectorKind.dsa else None
    return complete(config)


def our_logits(config: Config, folder: Path, tokens: list[int], cuts: list[int]) -> Tensor:
    """Logits after the prompt and after each forced token: [NEW + 1, vocab]."""
    executor = Executor(config, folder)
    logits: list[Tensor] = []
    prefill = executor.model.prefill
    executor.model.prefill = lambda *args: logits.append(prefill(*args)) or logits[-1]  # type: ignore
    request = Generation(tokens=tokens[:PROMPT], prompt_len=PROMPT, max_new_tokens=NEW)
    executor.add(0, request)
    for start, end in zip([0, *cuts], [*cuts, PROMPT], strict=True):
        executor.run(Plan(admitted=(0,) if start == 0 else (), prefill=(Chunk(0, start, end - start, end == PROMPT),)))
    kept = [logits[-1]]
    for forced in tokens[PROMPT:]:
        request.tokens[-1] = forced
        executor.run(Plan(decode=(0,)))
        assert executor.last_logits is not None
        kept.append(executor.last_logits[0])
    executor.remove(0)
    executor.kv.check_idle()
    return torch.stack(kept)


@pytest.fixture(scope="module", params=list(KINDS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    folder = tmp_path_factory.mktemp("models") / request.param
    model = judge_of(request.param)
    shards = "40KB" if request.param in ("qwen3", "glm_shared") else "1GB"
    model.save_pretrained(folder, max_shard_size=shards)
    assert (folder / "model.safetensors.index.json").exists() == (shards == "40KB")
    return request.param, folder, model


@pytest.mark.parametrize(("system", "cuts"), [("full_kv", []), ("hisparse_sync", [1, 18, 43])])
def test_logits_are_those_of_transformers(saved: tuple[str, Path, Any], system: str, cuts: list[int]) -> None:
    kind, folder, judge = saved
    tokens = torch.randint(0, VOCAB, (PROMPT + NEW,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        expected = judge(torch.tensor([tokens])).logits[0, PROMPT - 1 :]
    got = our_logits(cell_for(folder, KINDS[kind][2], system), folder, tokens, cuts)
    error = (got - expected).abs()
    assert float(expected.std()) > 0.1
    assert float(error.max()) < TOLERANCE, f"step {int(error.max(1).values.argmax())}: {float(error.max())}"


def test_another_models_numbers_are_refused(saved: tuple[str, Path, Any]) -> None:
    kind, folder, _ = saved
    config = cell_for(folder, KINDS[kind][2], "full_kv")
    check_weights(config.model)
    config.model.rms_norm_eps = 0.5
    with pytest.raises(ValueError, match=r"model.rms_norm_eps=0.5, but .*config.json says 1e-0\d"):
        check_weights(config.model)


def test_a_model_file_is_printed_that_loads(saved: tuple[str, Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    kind, folder, _ = saved
    main([str(folder)])
    printed = OmegaConf.to_container(OmegaConf.create(capsys.readouterr().out))
    assert isinstance(printed, dict)
    model = cell_for(folder, KINDS[kind][2], "full_kv").model
    for key, value in printed.items():
        ours = getattr(model, key)
        assert key == "name" or getattr(ours, "value", ours) == value
    assert printed["weights"] == str(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2'; the engine reads llama"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4}}, "rotary scaling of type 'yarn'"),
        ({"rope_scaling": {"type": "linear"}, "rope_parameters": None}, "rotary scaling of type 'linear'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"model_type": "deepseek_v3", "rope_interleave": False}, "rope_interleave=False"),
    ],
)
def test_what_the_engine_does_not_compute_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    content = {"model_type": "llama", "num_hidden_layers": 2, "rope_parameters": {"rope_type": "default"}} | change
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=says):
        model_fields(tmp_path)


def test_a_folder_without_a_tensor_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    judge_of("llama").save_pretrained(tmp_path)
    config = cell_for(tmp_path, SelectorKind.dense, "full_kv")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"has no tensor model.layers.1.mlp.up_proj.weight"):
        Executor(config, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="neither model.safetensors nor"):
        check_weights(config.model)


@pytest.mark.parametrize(
    ("found", "anchors"),
    [
        ({"indexer_types": ["full", "shared", "full", "shared"]}, [0, 2]),
        ({"index_topk_pattern": "FFSS"}, [0, 1]),
        ({"index_topk_freq": 4, "num_hidden_layers": 11}, [0, 1, 5, 9]),
        ({}, None),
    ],
)
def test_the_three_ways_to_say_which_layers_share(tmp_path: Path, found: dict[str, Any], anchors: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "glm_moe_dsa", "num_hidden_layers": 4} | found))
    assert model_fields(tmp_path)["index_anchors"] == anchors
