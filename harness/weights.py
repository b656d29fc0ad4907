"""Where a model's weights are: what `model.weights` means on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.fetch import is_fetched, model_dir
from harness.schema import Family, ModelConfig

_FETCH = "fetch:"


def fetch_name(spec: str) -> str | None:
    """NAME of `fetch:NAME`, None for any other spec."""
    return spec.removeprefix(_FETCH) if spec.startswith(_FETCH) else None


def weights_folder(spec: str) -> Path | None:
    """Folder of the weights, None for `random`. Raises ValueError, naming the fix, where it is not there."""
    if spec == "random":
        return None
    name = fetch_name(spec)
    if name is not None:
        if not is_fetched(name):
            raise ValueError(f"model.weights={spec} is not on this machine: run python -m harness.fetch {name}")
        return model_dir(name)
    folder = Path(spec).expanduser()
    if not folder.is_dir():
        raise ValueError(f"model.weights={spec}: no such folder; give random, fetch:NAME or a Hugging Face folder")
    return folder


def check_weights(model: ModelConfig) -> None:
    """Raise ValueError where the weights are missing or are another model's than the config describes."""
    folder = weights_folder(model.weights)
    if folder is not None:
        check_same_model(model, folder)


def check_same_model(model: ModelConfig, folder: Path) -> None:
    """Compare with the folder's config.json: the planner computes with conf/model's numbers. Raises ValueError,
    also for a family whose weights cannot be read from a folder yet."""
    if model.family is Family.mla:
        raise ValueError(f"model={model.name}: MLA weights load from a seed only; set model.weights=random")
    found = _read_json(folder / "config.json")
    rope = found.get("rope_parameters") or {}
    theirs = {
        "num_layers": found.get("num_hidden_layers"),
        "hidden_size": found.get("hidden_size"),
        "num_heads": found.get("num_attention_heads"),
        "num_kv_heads": found.get("num_key_value_heads"),
        "head_dim": found.get("head_dim") or _quotient(found.get("hidden_size"), found.get("num_attention_heads")),
        "intermediate_size": found.get("intermediate_size"),
        "vocab_size": found.get("vocab_size"),
        "rope_theta": found.get("rope_theta") or rope.get("rope_theta"),
        "rms_norm_eps": found.get("rms_norm_eps"),
        "tie_embeddings": found.get("tie_word_embeddings", False),
    }
    for key, value in theirs.items():
        if value != getattr(model, key):
            raise ValueError(f"model.{key}={getattr(model, key)}, but {folder}/config.json says {value}")


def _quotient(a: Any, b: Any) -> int | None:
    return a // b if isinstance(a, int) and isinstance(b, int) and b else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} does not exist: model.weights must name a Hugging Face folder")
    return dict(json.loads(path.read_text()))
