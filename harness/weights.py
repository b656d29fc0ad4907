"""Where a model's weights are: what `model.weights` means on this machine.

python -m harness.weights FOLDER prints the conf/model file of a Hugging Face folder.
"""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Any

from harness.fetch import is_fetched, model_dir
from harness.hf_config import model_fields, read_config
from harness.schema import ModelConfig

_FETCH = "fetch:"
_NAMED = "hf:"


def fetch_name(spec: str) -> str | None:
    """NAME of `fetch:NAME`, None for any other spec."""
    return spec.removeprefix(_FETCH) if spec.startswith(_FETCH) else None


def server_name(spec: str) -> str | None:
    """NAME of `hf:NAME`, which only a server's nodes need to know; None for any other spec."""
    return spec.removeprefix(_NAMED) if spec.startswith(_NAMED) else None


def weights_folder(spec: str) -> Path | None:
    """Folder of the weights, None for `random` and `hf:NAME`. Raises ValueError, with the fix, if it is not there."""
    if spec == "random" or server_name(spec) is not None:
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
    """Compare with the folder's config.json: the planner computes with conf/model's numbers. Raises ValueError."""
    for key, theirs in model_fields(folder).items():
        ours = getattr(model, key)
        if theirs != ours:
            raise ValueError(f"model.{key}={_shown(ours)}, but {folder}/config.json says {_shown(theirs)}")
    if tensor_files(folder) is None:
        raise ValueError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")


def tensor_files(folder: Path) -> dict[str, Path] | None:
    """File of every tensor of a sharded folder, {"": file} for one that is not sharded, None without weights."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return {"": single}
    if not index.is_file():
        return None
    return {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}


def _shown(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def main(args: list[str]) -> None:
    """Print a conf/model file for a Hugging Face folder."""
    if len(args) != 1:
        sys.exit("usage: python -m harness.weights FOLDER > NAME.yaml")
    folder = Path(args[0]).expanduser().resolve()
    try:
        fields = model_fields(folder)
    except ValueError as error:
        sys.exit(f"error: {error}")
    positions = read_config(folder).get("max_position_embeddings")
    values = {"name": folder.name, "weights": str(folder), "max_positions": positions} | fields
    for key, value in values.items():
        print(f"{key}: {json.dumps(_shown(value))}")


if __name__ == "__main__":
    main(sys.argv[1:])
