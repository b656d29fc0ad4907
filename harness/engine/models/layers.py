"""Building blocks both model families share: rotary embedding, MLP, attention over given records.

Shape suffixes in comments: n batch, T chunk, S positions attended to, H query heads, G kv heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import hisparse_kernels as kernels
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine.device import CPU

INVARIANT_ROWS = 16  # measured on x86 with MKL and one thread: fewer rows take other code paths


class RecordLayout(NamedTuple):
    """Where keys and values lie in a record: KV head g has its key at g * d, its value at value_offset + g * dv."""

    kv_heads: int
    value_offset: int
    value_dim: int


AttendSlots = Callable[[Tensor, Tensor, Tensor, RecordLayout, float], Tensor]  # the signature of `attend_slots`


class Rotary:
    """Rotary position embedding on the last dimension, halves rotated against each other (Llama's form)."""

    def __init__(self, dim: int, max_positions: int, theta: float, dtype: torch.dtype, device: torch.device = CPU):
        inverse = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), inverse)
        angles = torch.cat((angles, angles), dim=1)
        self.cos, self.sin = angles.cos().to(dtype).to(device), angles.sin().to(dtype).to(device)

    def at(self, positions: Tensor) -> Rotation:
        """The rotation of a batch's positions (int64 [m]), looked up once for all layers."""
        return Rotation(self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1))


class Rotation:
    def __init__(self, cos: Tensor, sin: Tensor):
        self._cos, self._sin = cos, sin  # [m, 1, dim]

    def __call__(self, x: Tensor) -> Tensor:
        """x [m, heads, dim]."""
        first, second = x.chunk(2, dim=-1)
        return x * self._cos + torch.cat((-second, first), dim=-1) * self._sin

    @property
    def dim(self) -> int:
        return self._cos.shape[-1]

    def back(self) -> Rotation:
        """The rotation that undoes this one."""
        return Rotation(self._cos, -self._sin)


def rotate_end(x: Tensor, rotate: Rotation) -> Tensor:
    """x [m, heads, d]: its last channels rotated, as many as the rotation has."""
    still = x.shape[-1] - rotate.dim
    return torch.cat((x[..., :still], rotate(x[..., still:])), dim=-1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., d], weight [d]."""
    return unit_rms(x, eps) * weight


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x [..., d] over the root of its mean square in the last dimension, in x's dtype.

    Reckoned in float32, as the published models do: in bfloat16 torch's mean also depends on how many rows there are.
    Written out: torch's fused norm took three times as long for the small rows of a decode step.
    """
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


class Linear:
    """x [m, in] @ weight [out, in].T, computed with at least `min_rows` rows."""

    def __init__(self, min_rows: int):
        self._min_rows = min_rows

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        rows = len(x)
        if rows >= self._min_rows:
            return F.linear(x, weight)
        return F.linear(F.pad(x, (0, 0, 0, self._min_rows - rows)), weight)[:rows]

    def per_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [m, H, in], weight [H, in, out]; [m, H, out]."""
        rows = len(x)
        if rows < self._min_rows:
            x = F.pad(x, (0, 0, 0, 0, 0, self._min_rows - rows))
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)[:rows]

    def swiglu(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = self(x, gate_up).chunk(2, dim=-1)
        return self(F.silu(gate) * up, down)


def chunk_mask(positions: Tensor, end: int) -> Tensor:
    """Causal mask of a prefill chunk at those positions, bool [end - start, end]."""
    return torch.arange(end, device=positions.device) <= positions.unsqueeze(1)


def attend_chunk(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """q [T, H, d], k [S, G, d], v [S, G, dv], mask bool [T, S]; returns [T, H * dv]."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.squeeze(0).transpose(0, 1).flatten(1)


def attend_slots(q: Tensor, pool: Tensor, slots: Tensor, layout: RecordLayout, scale: float) -> Tensor:
    """One query per request over the records of its slots, where they lie.

    q [n, H, d]; pool [..., W], one layer's records on the device; slots int32 [n, k], -1 for none; returns [n, H, dv].
    """
    kv_heads, value_offset, value_dim = layout
    return kernels.attend(
        q, pool, slots, kv_heads=kv_heads, value_offset=value_offset, value_dim=value_dim, scale=scale
    )


def attend_slots_one_by_one(q: Tensor, pool: Tensor, slots: Tensor, layout: RecordLayout, scale: float) -> Tensor:
    """As `attend_slots`, in shapes that only the request itself decides: batch-invariant whatever computes it.

    Each request attends over its own width, up to its last valid slot.
    """
    places = torch.arange(1, slots.shape[1] + 1, device=slots.device)
    widths = torch.where(slots >= 0, places, 0).amax(dim=1).tolist()
    rows = [attend_slots(q[i : i + 1], pool, slots[i : i + 1, :w], layout, scale) for i, w in enumerate(widths)]
    return torch.cat(rows)


def batch_invariant_attend() -> AttendSlots:
    """The compiled kernel computes each request and KV head by itself, in the order of its slots, so it is
    batch-invariant as it is; torch's products are not."""
    return attend_slots_one_by_one if kernels.backend() == "reference" else attend_slots


def attend_with_sinks(q: Tensor, kv: Tensor, valid: Tensor, sinks: Tensor, scale: float) -> Tensor:
    """Attention to records that are key and value at once, with a logit per head that takes weight and gives nothing
    (DeepSeek-V4 report, section 2.3.3).

    q [n, H, d]; kv [n, S, d] or, for all queries the same, [S, d]; valid bool [n, S]; sinks [H]; returns [n, H, d].
    """
    scores = torch.matmul(q, kv.transpose(-1, -2)) * scale
    scores = scores.masked_fill(~valid.unsqueeze(1), -torch.inf)
    sink = sinks.view(1, -1, 1).expand(len(q), -1, 1).to(scores.dtype)
    weights = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]
    return torch.matmul(weights, kv)


def attend_with_sinks_one_by_one(q: Tensor, kv: Tensor, valid: Tensor, sinks: Tensor, scale: float) -> Tensor:
    """As `attend_with_sinks` with kv [n, S, d], each request over its own width: batch-invariant."""
    places = torch.arange(1, valid.shape[1] + 1, device=valid.device)
    widths = torch.where(valid, places, 0).amax(dim=1).tolist()
    parts = [
        attend_with_sinks(q[i : i + 1], kv[i : i + 1, :w], valid[i : i + 1, :w], sinks, scale)
        for i, w in enumerate(widths)
    ]
    return torch.cat(parts)
