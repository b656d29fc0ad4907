"""Turn one llama-architecture GGUF file into a Hugging Face folder, without torch or transformers.

Why not let transformers do it: its loader reads GGUF, but its `save_pretrained` refuses to write the
model back, and it drops the digit splitting of the `smollm` tokenizer. Dequantised weights are float32.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

_TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",  # absent when the embeddings are tied
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types


def convert(gguf_file: Path, folder: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer's files into `folder`.

    Tied embeddings are stored once, with no `lm_head`. Raises ValueError for a GGUF file of another
    architecture, tokenizer or tensor naming than this understands.
    """
    from gguf import GGUFReader

    reader = GGUFReader(gguf_file)
    meta = _Meta(reader)
    config = hf_config(meta, tied="output.weight" not in {t.name for t in reader.tensors})
    _write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", ids)
    _write_tokenizer(meta, folder, config)
    _write_weights(reader, folder / "model.safetensors", config)


class _Meta:
    """The key-value part of a GGUF file, with a readable error for a missing key."""

    def __init__(self, reader: Any) -> None:
        self._fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise ValueError(f"GGUF file has no key {key!r}: not a llama model this harness can convert")
        return self._fields[key].contents()


def hf_config(meta: Any, *, tied: bool) -> dict[str, Any]:
    """The config.json of a llama model from GGUF metadata (`meta[key]` gives a value)."""
    arch = meta["general.architecture"]
    if arch != "llama":
        raise ValueError(f"GGUF architecture {arch!r} is not supported; only 'llama' is")
    hidden, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": meta["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": _decimal(meta["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _decimal(meta["llama.rope.freq_base"]),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def hf_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if gguf_name in _TOP_TENSORS:
        return _TOP_TENSORS[gguf_name]
    match gguf_name.split("."):
        case ["blk", layer, part, "weight"] if part in _LAYER_TENSORS:
            return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.weight"
    raise ValueError(f"GGUF tensor {gguf_name!r} has no known place in a llama model")


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's row order of a q or k projection [heads * head_dim, hidden].

    GGUF interleaves the two halves of each head, so that a rotary pair lies in adjacent rows;
    Hugging Face keeps the halves apart.
    """
    rows, cols = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, cols)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, cols))


def _write_weights(reader: Any, path: Path, config: dict[str, Any]) -> None:
    from gguf import dequantize
    from safetensors.numpy import save_file

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        part = tensor.name.split(".")[-2]
        tensors[hf_name(tensor.name)] = unpermute(weight, heads[part]) if part in heads else weight
    save_file(tensors, path, metadata={"format": "pt"})  # transformers insists on the format key
    shutil.copymode(path.with_name("config.json"), path)  # safetensors makes it 0600; a cache may be shared


def _write_tokenizer(meta: Any, folder: Path, config: dict[str, Any]) -> None:
    tokens = meta["tokenizer.ggml.tokens"]
    byte_level_bpe(
        tokens,
        meta["tokenizer.ggml.merges"],
        meta["tokenizer.ggml.token_type"],
        model=meta["tokenizer.ggml.model"],
        pre=meta["tokenizer.ggml.pre"],
    ).save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            # The class that takes tokenizer.json as it is; model classes would rebuild the pre-tokenizer.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[config["bos_token_id"]],
            "eos_token": tokens[config["eos_token_id"]],
            "pad_token": tokens[config["pad_token_id"]],
            "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
        },
    )
    (folder / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")


def byte_level_bpe(tokens: list[str], merges: list[str], kinds: list[int], *, model: str, pre: str) -> Any:
    """A `tokenizers.Tokenizer`: byte-level BPE that splits every digit apart (GGUF calls it `smollm`).

    `merges` are pairs joined by a space, `kinds` the GGUF type of each token.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if (model, pre) != ("gpt2", "smollm"):
        raise ValueError(f"GGUF tokenizer {model!r}/{pre!r} is not supported; only 'gpt2'/'smollm' is")
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [(token, kind) for token, kind in zip(tokens, kinds, strict=True)]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in added if kind == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in added if kind == _USER_DEFINED])
    return tokenizer


def _decimal(value: float) -> float:
    """GGUF stores float32; the shortest decimal that means the same (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
