"""The GGUF converter on a tiny made-up file; tests/test_fetch.py compares the real one with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from harness.gguf_to_hf import convert, hf_config, hf_name, unpermute

HIDDEN, HEADS, KV_HEADS, FFN = 32, 4, 2, 64
TOKENS = ["<eos>", "<bos>", "<unk>", *sorted(ByteLevel.alphabet()), "Ġa", "12"]


def tiny_tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    head_dim = HIDDEN // HEADS
    shapes = {
        "token_embd": (len(TOKENS), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * head_dim, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * head_dim, HIDDEN),
        "blk.0.ffn_gate": (FFN, HIDDEN),
        "blk.0.ffn_up": (FFN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FFN),
    }
    return {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(path: Path, tensors: dict[str, np.ndarray], *, arch: str = "llama", pre: str = "smollm") -> None:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["Ġ a", "1 2"])
    for token_id, add in enumerate(
        (writer.add_eos_token_id, writer.add_bos_token_id, writer.add_unk_token_id, writer.add_pad_token_id)
    ):
        add(token_id % 3)
    writer.add_chat_template("{{ bos_token }}")
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_config_and_weights_of_a_tiny_file(tmp_path: Path) -> None:
    tensors = tiny_tensors(np.random.default_rng(0))
    write_gguf(tmp_path / "tiny.gguf", tensors)
    convert(tmp_path / "tiny.gguf", tmp_path)

    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 1e5)
    assert (config["num_hidden_layers"], config["head_dim"]) == (1, HIDDEN // HEADS)
    stored = load_file(tmp_path / "model.safetensors")
    assert set(stored) == {hf_name(name) for name in tensors}  # tied: no lm_head
    np.testing.assert_array_equal(stored["model.embed_tokens.weight"], tensors["token_embd.weight"])
    np.testing.assert_array_equal(stored["model.layers.0.mlp.down_proj.weight"], tensors["blk.0.ffn_down.weight"])
    for part, name, heads in (("q_proj", "attn_q", HEADS), ("k_proj", "attn_k", KV_HEADS)):
        expected = unpermute(tensors[f"blk.0.{name}.weight"], heads)
        np.testing.assert_array_equal(stored[f"model.layers.0.self_attn.{part}.weight"], expected)
        assert not np.array_equal(expected, tensors[f"blk.0.{name}.weight"])


def test_an_untied_head_is_stored_and_said(tmp_path: Path) -> None:
    tensors = tiny_tensors(np.random.default_rng(1))
    tensors["output.weight"] = tensors["token_embd.weight"] + 1
    write_gguf(tmp_path / "tiny.gguf", tensors)
    convert(tmp_path / "tiny.gguf", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
    np.testing.assert_array_equal(load_file(tmp_path / "model.safetensors")["lm_head.weight"], tensors["output.weight"])


def test_unpermute_takes_interleaved_pairs_apart() -> None:
    heads, head_dim, cols = 3, 8, 5
    hf = np.arange(heads * head_dim * cols).reshape(heads * head_dim, cols)
    stored = np.empty_like(hf)
    for head in range(heads):
        for j in range(head_dim // 2):
            for half in range(2):  # GGUF row 2j + half holds row j of that half
                stored[head * head_dim + 2 * j + half] = hf[head * head_dim + half * (head_dim // 2) + j]
    np.testing.assert_array_equal(unpermute(stored, heads), hf)


def test_tokenizer_splits_digits_and_knows_control_tokens(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_tensors(np.random.default_rng(2)))
    convert(tmp_path / "tiny.gguf", tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("12<eos> a").tokens == ["1", "2", "<eos>", "Ġa"]
    assert tokenizer.decode(tokenizer.encode("é 1<eos>").ids) == "é 1"
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (settings["eos_token"], settings["bos_token"], settings["unk_token"]) == (
        "<eos>",
        "<bos>",
        "<unk>",
    )
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ bos_token }}"


def test_what_it_does_not_understand_is_refused(tmp_path: Path) -> None:
    tensors = tiny_tensors(np.random.default_rng(3))
    write_gguf(tmp_path / "arch.gguf", tensors, arch="qwen2")
    with pytest.raises(ValueError, match="architecture 'qwen2' is not supported"):
        convert(tmp_path / "arch.gguf", tmp_path)
    write_gguf(tmp_path / "pre.gguf", tensors, pre="llama-bpe")
    with pytest.raises(ValueError, match="'gpt2'/'llama-bpe' is not supported"):
        convert(tmp_path / "pre.gguf", tmp_path)
    with pytest.raises(ValueError, match=r"rope_freqs\.weight"):
        hf_name("rope_freqs.weight")
    with pytest.raises(KeyError):
        hf_config({"general.architecture": "llama"}, tied=True)
