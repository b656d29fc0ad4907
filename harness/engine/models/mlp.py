"""The part of a layer after attention: a gated MLP, or experts that a router chooses for each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine.models.layers import Linear
from harness.schema import ModelConfig, RouterKind

# published routers add this to the sum that they divide by
_NO_ZERO = 1e-20
_VECTORS = 64  # a multiple of the numbers that torch's loops take at once


@dataclass(slots=True)
class Dense:
    gate_up: Tensor  # [2 ffn, hidden]
    down: Tensor  # [hidden, ffn]


@dataclass(slots=True)
class Experts:
    router: Tensor  # float32 [E, hidden]
    bias: Tensor | None  # float32 [E], added to the scores that experts are chosen by, not to their weights
    gate_up: Tensor  # [E, 2 f, hidden]
    down: Tensor  # [E, hidden, f]
    shared: Dense | None


class FeedForward:
    """x [m, hidden] -> [m, hidden]. A row's result depends on the other rows only as `Linear`'s does."""

    def __init__(self, config: ModelConfig, linear: Linear):
        self._linear = linear
        self._kind, self._count = config.router, config.experts_per_token or 0
        self._groups, self._groups_taken = config.expert_groups, config.groups_per_token
        self._normalize, self._scale = config.normalize_routing, config.routed_scale

    def __call__(self, x: Tensor, weights: Dense | Experts) -> Tensor:
        if isinstance(weights, Dense):
            return self._linear.swiglu(x, weights.gate_up, weights.down)
        chosen, share = self.route(x, weights)
        out = torch.zeros_like(x) if weights.shared is None else self(x, weights.shared)
        for expert in chosen.unique().tolist():  # rising: a row's terms are added in one order, whoever is beside it
            token, place = (chosen == expert).nonzero(as_tuple=True)
            own = self._linear.swiglu(x[token], weights.gate_up[expert], weights.down[expert])
            out.index_add_(0, token, own * share[token, place].unsqueeze(1).to(own.dtype))
        return out

    def route(self, x: Tensor, weights: Experts) -> tuple[Tensor, Tensor]:
        """Experts int64 [m, per token] of each row and their weights float32 [m, per token].

        DeepSeek-V3 report, section 2.1.2: the bias balances the load and is no part of the weight; experts are
        chosen within the groups whose two best experts score highest together.
        """
        scores = self._scores(self._linear(x.float(), weights.router))
        ranked = scores if weights.bias is None else scores + weights.bias
        if self._groups > 1:
            grouped = ranked.view(len(x), self._groups, -1)
            best = grouped.topk(2, dim=2).values.sum(2).topk(self._groups_taken, dim=1).indices
            taken = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=x.device).scatter_(1, best, True)
            ranked = grouped.masked_fill(~taken.unsqueeze(2), -torch.inf).flatten(1)
        chosen = ranked.topk(self._count, dim=1).indices
        share = scores.gather(1, chosen)
        if self._normalize:
            share = share / (share.sum(1, keepdim=True) + _NO_ZERO)
        return chosen, share * self._scale

    def _scores(self, logits: Tensor) -> Tensor:
        """logits float32 [m, E]. Each row is filled up to whole vectors: what a loop of torch has left at its end it
        computes by other code, whose last bit differs, and where that end lies depends on the number of rows."""
        if self._kind is RouterKind.softmax:
            return logits.softmax(dim=1)
        whole = F.pad(logits, (0, -logits.shape[1] % _VECTORS))
        scores = whole.sigmoid() if self._kind is RouterKind.sigmoid else F.softplus(whole).sqrt()
        return scores[:, : logits.shape[1]]
