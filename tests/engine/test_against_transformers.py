"""The engine against an independent judge: Hugging Face transformers on the same SmolLM2 weights.

Logits are float32 sums in different orders, so they agree to a tolerance: 2e-3 where logits are of order 10
(30 layers of rounding at 6e-8 each; what we saw is about 1e-4). Greedy tokens must be the same.
"""

from __future__ import annotations

import inspect
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from engine_cells import cell
from torch import Tensor

from harness.engine.executor import Executor, Generation
from harness.engine.models.base import Model
from harness.engine.scheduler import Chunk, Plan
from harness.engine.tokenizer import load_tokenizer
from harness.fetch import fetch

pytestmark = pytest.mark.model

PROMPT_TOKENS = 300
NEW_TOKENS = 16
TOLERANCE = 2e-3
CELL = ["experiment=smollm2_quest", "selector=dense", "selector.top_k=null", "tracker=none", "load.concurrencies=[1]"]
CELL += ["engine.context_len=512", "workload.input_len=300", "workload.output_len=16"]
CELL += ["engine.device_kv_budget=200MiB", "engine.host_kv_budget=200MiB", "engine.max_running_requests=2"]


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch("smollm2_135m")


@pytest.fixture(scope="module")
def prompt(folder: Path) -> list[int]:
    """Real text: the source of the standard library's `random`."""
    ids = load_tokenizer(folder, 49152).encode(inspect.getsource(random))
    return ids[:PROMPT_TOKENS]


@dataclass
class Judged:
    tokens: list[int]
    logits: Tensor  # [NEW_TOKENS, vocab]: what each new token was chosen from


@pytest.fixture(scope="module")
def judge(folder: Path, prompt: list[int]) -> Judged:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    return Judged(out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits))


@pytest.fixture(scope="module")
def shared_model(folder: Path) -> Model:
    """Our model, loaded once; the KV side is each test's own."""
    from harness.engine.models.loader import load_model

    return load_model(cell([*CELL, "offload=full_kv"]), folder)


def generate(
    system: str,
    model: Model,
    prompt: list[int],
    cuts: list[int],
    monkeypatch: pytest.MonkeyPatch,
    new_tokens: int = NEW_TOKENS,
) -> tuple[list[int], Tensor]:
    """Greedy tokens and the logits they came from, the prompt computed in chunks that end at `cuts`."""
    monkeypatch.setattr("harness.engine.executor.load_model", lambda *_: model)
    executor = Executor(cell([*CELL, f"offload={system}"]), None)
    first: list[Tensor] = []
    prefill = model.prefill
    monkeypatch.setattr(model, "prefill", lambda *args: first.append(prefill(*args)) or first[-1])
    request = Generation(tokens=list(prompt), prompt_len=len(prompt), max_new_tokens=new_tokens)
    executor.add(7, request)
    starts = [0, *cuts[:-1]]
    for start, end in zip(starts, cuts, strict=True):
        chunk = Chunk(7, start, end - start, end == len(prompt))
        executor.run(Plan(admitted=(7,) if start == 0 else (), prefill=(chunk,)))
    logits = [first[-1]]
    for _ in range(new_tokens - 1):
        executor.run(Plan(decode=(7,)))
        assert executor.last_logits is not None
        logits.append(executor.last_logits[0])
    executor.remove(7)
    executor.kv.check_idle()
    return request.tokens[len(prompt) :], torch.stack(logits)


@pytest.mark.parametrize(
    ("system", "cuts"),
    [("full_kv", [300]), ("full_kv", [1, 17, 160, 299, 300]), ("hisparse_sync", [130, 137, 300])],
)
def test_same_logits_and_greedy_tokens(
    system: str,
    cuts: list[int],
    judge: Judged,
    shared_model: Model,
    prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens, logits = generate(system, shared_model, prompt, cuts, monkeypatch)
    error = (logits - judge.logits).abs()
    step, index = divmod(int(error.argmax()), error.shape[1])
    assert float(error.max()) < TOLERANCE, f"step {step}, vocabulary index {index}"
    assert tokens == judge.tokens


def test_the_judge_sees_the_difference_of_one_token(
    judge: Judged, shared_model: Model, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tolerance is no blanket: another first word moves the logits far beyond it."""
    other = [prompt[0] + 1, *prompt[1:]]
    _, logits = generate("full_kv", shared_model, other, [300], monkeypatch, new_tokens=1)
    assert float((logits[0] - judge.logits[0]).abs().max()) > 10 * TOLERANCE


def test_tokenising_a_long_text_lets_other_threads_run(folder: Path) -> None:
    """The engine's thread and the event loop among them; some of the library's calls hold Python's lock."""
    tokenizer, text = load_tokenizer(folder, 49152), inspect.getsource(random) * 5
    work = threading.Thread(target=lambda: tokenizer.encode(text))
    began, mine = time.process_time(), time.thread_time()
    work.start()
    while work.is_alive():
        pass
    share = (time.thread_time() - mine) / (time.process_time() - began)
    assert share > 0.3  # of what both computed: half without the lock, less than 0.1 with it held
