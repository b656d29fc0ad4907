"""engine=quality on a small random model: what is judged, by whom, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from harness.config import load_cells
from harness.engine.batch import ChunkBatch
from harness.engine.kv import make_kv
from harness.engine.models.loader import load_model
from harness.engine.selectors import make_selector
from harness.offline import OfflineError, quality
from harness.offline.quality import measure_quality as measure
from harness.records import QUALITY_MEASURES
from harness.schema import Config
from harness.validate import ConfigError

TEXTS, PROMPT, SCORED, VOCAB = 3, 80, 24, 300
SIZES = {"num_layers": 3, "hidden_size": 96, "num_heads": 6, "num_kv_heads": 2, "head_dim": 16}
SIZES |= {"intermediate_size": 128, "vocab_size": VOCAB}


@pytest.fixture(autouse=True)
def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.Tensor]:
    """Random ids instead of windows of files, and no texts kept from another test."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCAB, (TEXTS, PROMPT + SCORED + 1), generator=generator)
    fed = lambda config, *_: tokens[:, : PROMPT + config.workload.output_len + 1]  # noqa: E731
    monkeypatch.setattr(quality, "_tokens", fed)
    threads = torch.get_num_threads()
    quality._kept.clear()
    yield tokens
    quality._kept.clear()
    torch.set_num_threads(threads)


def config_of(selector: str, top_k: int | None = None, *more: str, system: str = "full_kv") -> Config:
    command = ["experiment=smollm2_quest", "engine=quality", "tracker=none", "load.concurrencies=[1]"]
    command += [f"selector={selector}", f"selector.top_k={'null' if top_k is None else top_k}", f"offload={system}"]
    lengths = [f"workload.input_len={PROMPT}", f"workload.output_len={SCORED}"]
    (config,) = load_cells([*command, *lengths, *more])
    for key, value in SIZES.items():
        setattr(config.model, key, value)
    config.model.weights = "random"
    return config


def test_dense_is_judged_by_the_texts_own_next_tokens(texts: torch.Tensor) -> None:
    """Against prefill of ever longer prompts, which goes another way through the model."""
    config = config_of("dense")
    found = measure(config, TEXTS, 0)
    assert set(found) == set(QUALITY_MEASURES)
    model, kv = load_model(config, None), make_kv(config)
    selector = make_selector(config, kv.num_rows)
    surprise = []
    with torch.inference_mode():
        for text in texts:
            for length in range(PROMPT + 1, PROMPT + SCORED + 1):
                row = kv.admit(length)
                batch = ChunkBatch.of(row, 0, length)
                kv.begin_chunk(batch)
                logits = model.prefill(text[:length], batch, kv, selector).double()
                surprise.append(float(logits.logsumexp(0) - logits[text[length]]))
                kv.release(row)
    assert found["scored_tokens"] == len(surprise) == TEXTS * SCORED
    assert found["perplexity"] == found["dense_perplexity"]
    assert found["perplexity"] == pytest.approx(math.exp(sum(surprise) / len(surprise)), rel=1e-5)
    assert found["agreement"] == 1


def test_a_selection_of_everything_is_full_attention() -> None:
    for selector in ("quest", "exact_topk", "window"):
        found = measure(config_of(selector, 96, "workload.output_len=16"), TEXTS, 0)
        assert found["agreement"] == 1
        assert found["perplexity"] == pytest.approx(found["dense_perplexity"], rel=1e-5)


def test_a_small_selection_costs_quality_and_its_placement_nothing() -> None:
    found = {name: measure(config_of(name, 16), TEXTS, 0) for name in ("quest", "exact_topk", "window")}
    assert all(measures["agreement"] < 1 for measures in found.values())
    assert len({measures["perplexity"] for measures in found.values()}) == 3
    assert found["exact_topk"]["agreement"] >= found["window"]["agreement"]
    for system in ("hisparse_sync", "fetch_all"):
        assert measure(config_of("quest", 16, system=system), TEXTS, 0) == found["quest"]


def test_texts_beyond_the_budget_are_refused() -> None:
    with pytest.raises(OfflineError, match=r"3 texts of 104 tokens hold .* of device KV, the budget is 64 KiB: r"):
        measure(config_of("dense", None, "engine.device_kv_budget=64KiB"), TEXTS, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("workload=random_ids", "workload=random_ids is no text"),
        ("offload=no_io_oracle", "offload=no_io_oracle has no valid outputs"),
    ],
)
def test_what_cannot_be_judged_is_refused(change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("quest", 16, change)
