"""Where a model's weights are: what `model.weights` means on this machine."""

from __future__ import annotations

from pathlib import Path

from harness.fetch import is_fetched, model_dir

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
