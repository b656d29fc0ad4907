"""DeepSeek-V4's attention block against transformers', on the same weights: window, compressed entries, indexer, sinks,
grouped output, for the three kinds of layer. Prefill in chunks cut at odd places, then token by token.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from engine_cells import cell_of
from torch import Tensor

from harness.engine.batch import ChunkBatch, DecodeBatch
from harness.engine.kv import make_kv
from harness.engine.models.checkpoint import pairs_to_halves
from harness.engine.models.compressor import CompressorWeights
from harness.engine.models.csa import CSALayer, CSAModel, CSAWeights, EntryIndexer
from harness.engine.models.layers import Linear
from harness.engine.models.mlp import Dense
from harness.engine.selectors import make_selector
from harness.schema import Config

HIDDEN, HEADS, DIM, ROPE, RANK = 24, 4, 16, 8, 20
INDEX_HEADS, INDEX_DIM, TOP_K = 16, 12, 5
WINDOW, SHORT, LONG = 7, 4, 10
LENGTH, PROMPT = 90, 61
TOLERANCE = 5e-6  # float32; outputs are of order 1
KINDS = {0: "sliding_attention", SHORT: "compressed_sparse_attention", LONG: "heavily_compressed_attention"}


def judge_of(ratio: int) -> tuple[Any, Any]:
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Attention, DeepseekV4RotaryEmbedding

    config = DeepseekV4Config(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        head_dim=DIM,
        q_lora_rank=RANK,
        partial_rotary_factor=ROPE / DIM,
        num_hidden_layers=1,
        layer_types=[KINDS[ratio]],
        compress_rates={KINDS[SHORT]: SHORT, KINDS[LONG]: LONG},
        mlp_layer_types=["moe"],
        sliding_window=WINDOW,
        o_groups=2,
        o_lora_rank=6,
        index_n_heads=INDEX_HEADS,
        index_head_dim=INDEX_DIM,
        index_topk=TOP_K,
        max_position_embeddings=256,
    )
    # the index head rotates as many channels as the attention head: transformers derives it from the share
    config._attn_implementation = "eager"
    torch.manual_seed(ratio)
    block = DeepseekV4Attention(config, 0).eval()
    with torch.no_grad():
        for name, tensor in block.named_parameters():
            if "norm" in name:
                tensor.copy_(1 + 0.3 * torch.randn_like(tensor))
            elif tensor.dim() == 1 or "position_bias" in name:
                tensor.normal_(0, 0.5)
            else:
                tensor.normal_(0, 2 * tensor.shape[-1] ** -0.5)
    return block, DeepseekV4RotaryEmbedding(config)


def expected_output(block: Any, rotary: Any, x: Tensor) -> Tensor:
    positions = torch.arange(len(x)).unsqueeze(0)
    embeddings = {kind: rotary(x.unsqueeze(0), positions, layer_type=kind) for kind in ("main", "compress")}
    distance = positions[0].unsqueeze(1) - positions[0]
    mask = torch.where((distance >= 0) & (distance < WINDOW), 0.0, -torch.inf)
    with torch.no_grad():
        out: Tensor = block(x.unsqueeze(0), embeddings, positions, mask[None, None])[0][0]
    return out


def halves(weight: Tensor, width: int) -> Tensor:
    """Outputs [heads * width, ...]: the rotated end of each head from pairs to halves."""
    flat = weight.reshape(-1, width, weight[0].numel())
    return pairs_to_halves(flat, width - ROPE, ROPE).reshape(weight.shape)


def compressor(module: Any, width: int) -> CompressorWeights:
    return CompressorWeights(
        value=halves(module.kv_proj.weight, width),
        gate=halves(module.gate_proj.weight, width),
        bias=halves(module.position_bias.T, width).T.contiguous(),
        norm=halves(module.kv_norm.weight, width),
    )


def our_layer(block: Any) -> CSALayer:
    indexer = getattr(block.compressor, "indexer", None)
    out_down = block.o_a_proj.weight.view(2, -1, HEADS * DIM // 2)
    by_input = halves(out_down.permute(2, 0, 1), DIM).permute(1, 2, 0)
    return CSALayer(
        attn_norm=torch.ones(HIDDEN),
        q_down=block.q_a_proj.weight,
        q_norm=block.q_a_norm.weight,
        q_up=halves(block.q_b_proj.weight, DIM),
        kv=halves(block.kv_proj.weight, DIM),
        kv_norm=halves(block.kv_norm.weight, DIM),
        entries=None if block.compressor is None else compressor(block.compressor, DIM),
        indexer=None
        if indexer is None
        else EntryIndexer(
            q=halves(indexer.q_b_proj.weight, INDEX_DIM),
            weights=indexer.scorer.weights_proj.weight,
            keys=compressor(indexer, INDEX_DIM),
        ),
        sinks=block.sinks,
        out_down=by_input.contiguous(),
        out_up=block.o_b_proj.weight,
        mlp_norm=torch.ones(HIDDEN),
        mlp=Dense(torch.zeros(2, HIDDEN), torch.zeros(HIDDEN, 1)),  # leaves the residual as attention made it
    )


def cell_for(ratio: int, system: str) -> Config:
    """One layer of the kind, behind one of managed entries that does nothing: a csa model must manage something."""
    sizes = {
        **{"num_layers": 2, "hidden_size": HIDDEN, "num_heads": HEADS, "head_dim": DIM, "q_lora_rank": RANK},
        **{"qk_rope_head_dim": ROPE, "window": WINDOW, "record_tokens": SHORT, "out_lora_rank": 6},
        **{"index_num_heads": INDEX_HEADS, "index_head_dim": INDEX_DIM, "rms_norm_eps": "0.000001"},
    }
    more = [f"model.{key}={value}" for key, value in sizes.items()]
    return cell_of("nsa", system, *more, f"model.compress_ratios=[{SHORT}, {ratio}]", f"selector.top_k={TOP_K}")


def idle(layer: CSALayer, managed: CSALayer) -> CSALayer:
    """A managed layer that adds nothing to the residual."""
    made = {key: getattr(managed, key) for key in CSALayer.__slots__}
    return CSALayer(**made | {"out_up": torch.zeros_like(layer.out_up)})


@pytest.mark.parametrize("system", ["full_kv", "hisparse_sync"])
@pytest.mark.parametrize("ratio", list(KINDS))
def test_a_layer_attends_as_published(ratio: int, system: str) -> None:
    block, rotary = judge_of(ratio)
    managed, _ = judge_of(SHORT)
    torch.manual_seed(1)
    embed = torch.randn(LENGTH, HIDDEN) + 0.5
    normed = embed * torch.rsqrt(embed.square().mean(-1, keepdim=True) + 1e-6)
    expected = embed + expected_output(block, rotary, normed)

    config = cell_for(ratio, system)
    layers = [idle(our_layer(managed), our_layer(managed)), our_layer(block)]
    final = CSAWeights(embed, layers, torch.ones(HIDDEN), torch.eye(HIDDEN))
    with torch.inference_mode():
        model = CSAModel(config, final, Linear(1))
        model._logits = lambda x: x  # type: ignore[method-assign]  # the residual itself
        kv = make_kv(config)
        selector = make_selector(config, kv.num_rows)
        got = [*prefilled(model, kv, selector), *decoded(model, kv, selector)]
    rows = [*CUTS[1:], *range(PROMPT + 1, LENGTH + 1)]
    error = (torch.stack(got) - expected[[row - 1 for row in rows]]).abs().amax(1)
    assert float(expected_output(block, rotary, normed).std()) > 0.1
    assert float(error.max()) < TOLERANCE, f"position {rows[int(error.argmax())] - 1}: {float(error.max())}"


CUTS = [0, 1, 2, 3, 9, 16, 17, 40, 41, PROMPT]
ROW = 1


def prefilled(model: CSAModel, kv: Any, selector: Any) -> list[Tensor]:
    """The last position of each chunk."""
    assert [kv.admit(kv.footprint.num_records(LENGTH)) for _ in range(2)][-1] == ROW
    out = []
    for start, end in pairwise(CUTS):
        batch = ChunkBatch.of(ROW, start, end - start)
        kv.begin_chunk(batch.in_records(SHORT))
        out.append(model.prefill(torch.arange(start, end), batch, kv, selector))
    kv.finish_prefill(ROW, kv.footprint.num_records(PROMPT))
    return out


def decoded(model: CSAModel, kv: Any, selector: Any) -> list[Tensor]:
    out = []
    for length in range(PROMPT + 1, LENGTH + 1):
        batch = DecodeBatch.of([ROW], [length])
        kv.begin_decode(batch.in_records(SHORT))
        out.append(model.decode(torch.tensor([length - 1]), batch, kv, selector)[0])
    return out
