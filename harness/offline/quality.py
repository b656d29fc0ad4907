"""What a selection costs in quality: perplexity and next-token agreement with full attention, on real text.

Every text's first `workload.input_len` tokens are computed with full attention, as Quest and the engine do; the next
`workload.output_len` are fed one by one through the cell's selector and KV side, exactly as the server decodes, and
each step's logits are judged by the text's own next token. Full attention's verdict on the same tokens comes first,
once for all cells of a process.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.engine.footprint import Footprint
from harness.offline.base import Measures, OfflineError
from harness.schema import (
    Config,
    Family,
    OffloadConfig,
    OffloadSystem,
    Prefetch,
    SelectorConfig,
    SelectorKind,
    to_plain,
)
from harness.units import show_bytes
from harness.weights import weights_folder

if TYPE_CHECKING:
    from torch import Tensor

    from harness.engine.kv.base import KVSide
    from harness.engine.models.base import Model
    from harness.engine.selectors.base import Selector


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of every text's scored tokens: how surprising each was, and what the model held likeliest instead."""

    surprise: Tensor  # float64 [n, output_len], negative log likelihood in nats
    likeliest: Tensor  # int64 [n, output_len]


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts whose prompts are computed with full attention: what all cells start from."""

    model: Model
    tokens: Tensor  # int64 [n, input_len + output_len + 1]
    kv: KVSide
    rows: list[int]
    dense: Verdict


_kept: dict[str, Texts] = {}  # the latest


def measure_quality(config: Config, count: int, repeat: int) -> Measures:
    """Quality of the cell's selector over `count` texts. Raises OfflineError for texts that do not fit the budget."""
    import torch

    torch.set_num_threads(max(1, int(config.platform.num_cpus)))
    with torch.inference_mode():
        texts = _texts(config, count, repeat)
        verdict = texts.dense if _is_dense(config) else _decode_from(texts, config)
    agree = (verdict.likeliest == texts.dense.likeliest).double().mean()
    return {
        "perplexity": float(verdict.surprise.mean().exp()),
        "dense_perplexity": float(texts.dense.surprise.mean().exp()),
        "agreement": float(agree),
        "scored_tokens": verdict.surprise.numel(),
    }


def _is_dense(config: Config) -> bool:
    return config.selector.kind is SelectorKind.dense and config.offload.system is OffloadSystem.full_kv


def _texts(config: Config, count: int, repeat: int) -> Texts:
    plain = to_plain(config)
    key = repr([plain["model"], plain["workload"], plain["engine"], count, repeat])
    if key not in _kept:
        _kept.clear()
        _kept[key] = _prefilled(config, _tokens(config, count, repeat))
    return _kept[key]


def _tokens(config: Config, count: int, repeat: int) -> Tensor:
    """Windows of the workload's texts, one token longer than what is fed: the last is only judged by."""
    import torch

    from workloads import make_source

    folder = weights_folder(config.model.weights)
    assert folder is not None, "text_files needs a tokenizer"
    work = copy.deepcopy(config.workload)
    work.input_len = config.workload.input_len + config.workload.output_len + 1
    try:
        source = make_source(work, vocab_size=config.model.vocab_size, tokenizer_file=folder / "tokenizer.json")
        prompts = source.prompts(count, concurrency=count, repeat=repeat, phase="measured")
    except ValueError as error:
        raise OfflineError(str(error)) from error
    return torch.tensor([prompt.token_ids for prompt in prompts])


def _prefilled(config: Config, tokens: Tensor) -> Texts:
    """Load the model and compute every prompt with full attention, then full attention's verdict."""
    from harness.engine.batch import ChunkBatch
    from harness.engine.kv import make_kv
    from harness.engine.models.loader import load_model
    from harness.engine.selectors import make_selector

    dense = copy.deepcopy(config)
    dense.selector = SelectorConfig(kind=SelectorKind.dense)
    dense.offload = OffloadConfig(system=OffloadSystem.full_kv, prefetch=Prefetch.none)
    _check_fits(dense, len(tokens))
    model, kv = load_model(dense, weights_folder(dense.model.weights)), make_kv(dense)
    selector = make_selector(dense, kv.num_rows)
    length, piece = config.workload.input_len, config.engine.prefill_chunk_tokens
    rows = [kv.admit(config.context_len) for _ in tokens]
    for row, text in zip(rows, tokens, strict=True):
        for start in range(0, length, piece):
            batch = ChunkBatch.of(row, start, min(piece, length - start))
            kv.begin_chunk(batch)
            model.prefill(text[batch.start : batch.end], batch, kv, selector)
        kv.finish_prefill(row, length)
    return Texts(model, tokens, kv, rows, _judge(model, tokens, length, kv, rows, selector))


def _decode_from(texts: Texts, config: Config) -> Verdict:
    """The verdict of the cell's selector and KV side, which begin with the prompts' records."""
    from harness.engine.batch import ChunkBatch
    from harness.engine.kv import make_kv
    from harness.engine.selectors import make_selector

    _check_fits(config, len(texts.rows))
    kv = make_kv(config)
    selector = make_selector(config, kv.num_rows)
    length = config.workload.input_len
    rows = [kv.admit(config.context_len) for _ in texts.rows]
    for row, computed in zip(rows, texts.rows, strict=True):
        batch = ChunkBatch.of(row, 0, length)
        kv.begin_chunk(batch)
        texts.kv.begin_chunk(ChunkBatch.of(computed, 0, length))
        for layer in range(kv.num_layers):
            records = texts.kv.prefix(layer)
            kv.stage(layer, records)
            selector.extend(layer, batch, _keys(config, records))
        kv.finish_prefill(row, length)
    verdict = _judge(texts.model, texts.tokens, length, kv, rows, selector)
    for row in rows:
        kv.release(row)
    kv.check_idle()
    return verdict


def _judge(model: Model, tokens: Tensor, start: int, kv: KVSide, rows: Sequence[int], selector: Selector) -> Verdict:
    """Feed tokens from `start` on; each step's logits against the token that follows."""
    import torch

    from harness.engine.batch import DecodeBatch

    surprise, likeliest = [], []
    for position in range(start, tokens.shape[1] - 1):
        batch = DecodeBatch.of(list(rows), [position + 1] * len(rows))
        kv.begin_decode(batch)
        logits = model.decode(tokens[:, position], batch, kv, selector).double()
        of_next = logits.gather(1, tokens[:, position + 1 : position + 2]).squeeze(1)
        surprise.append(logits.logsumexp(dim=1) - of_next)
        likeliest.append(logits.argmax(dim=1))
    return Verdict(torch.stack(surprise, dim=1), torch.stack(likeliest, dim=1))


def _keys(config: Config, records: Tensor) -> Tensor:
    """A layer's attention keys, from its records."""
    if config.model.family is Family.mla:
        return records
    assert config.model.num_kv_heads is not None
    return records.view(len(records), 2, config.model.num_kv_heads, -1)[:, 0]


def _check_fits(config: Config, count: int) -> None:
    need = Footprint(config).request(config.context_len)
    for kind, held, budget in (
        ("device", need.device, config.engine.device_kv_budget),
        ("host", need.host, config.engine.host_kv_budget),
    ):
        if count * held > int(budget):
            raise OfflineError(
                f"{count} texts of {config.context_len} tokens hold {show_bytes(count * held)} of {kind} KV, the "
                f"budget is {show_bytes(int(budget))}: raise engine.{kind}_kv_budget or lower load.concurrencies"
            )
