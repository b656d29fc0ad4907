"""SGLang's bench_serving without SGLang's server: run by the interpreter that has the package `sglang`.

Importing the package loads the server, which wants CUDA. This puts bare packages in its place, so that the client
(`sglang/benchmark/serving.py`, as published) finds the modules it uses, and the two it would load the server for.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

_BARE = ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation")


def main() -> None:
    """Run bench_serving's own command line."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        sys.exit("error: sglang is not installed for this interpreter")
    root = Path(spec.origin).parent
    for name in _BARE:
        package = _put(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    _put("sglang.srt.disaggregation.utils", FAKE_BOOTSTRAP_HOST="2.2.2.2")  # of an option nobody gives here
    _put("sglang.srt.utils.hf_transformers_utils", get_tokenizer=_tokenizer)
    importlib.import_module("sglang.benchmark.serving").cli_main()


def _put(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
    return module


def _tokenizer(name: str, *_: Any, **__: Any) -> Any:
    # By name: this file runs in SGLang's environment, the load generator itself never loads transformers.
    return importlib.import_module("transformers").AutoTokenizer.from_pretrained(name)


if __name__ == "__main__":
    main()
