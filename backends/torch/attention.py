"""Causal attention with a KV cache that lies in pieces: each piece attended by itself, the softmaxes merged.

A piece has keys and values of some positions. Over it, with scores s and their maximum m, attention gives the sum of
exp(s - m) and the sum of exp(s - m) v; of two pieces these are added after scaling both to the greater maximum. So
pieces may lie in different memories and be attended at the same time by different processors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_TOGETHER_BYTES = 8 << 20
"""Of keys and values in 32 bits that are attended at a time on the CPU."""


@dataclass(frozen=True)
class Partial:
    """What a piece gives: `greatest` and `total` [B, K, G, L, 1], `summed` [B, K, G, L, D], all f32."""

    greatest: Tensor
    total: Tensor
    summed: Tensor

    def to(self, device: torch.device) -> Partial:
        return Partial(*(t.to(device, non_blocking=True) for t in (self.greatest, self.total, self.summed)))


@dataclass(frozen=True)
class Query:
    """Queries [B, K, G, L, D] (K heads of keys and values, G heads of queries each) at positions pos[b] + l.

    Scores are multiplied by `scale`; a query sees positions up to its own, with `window` not 0 the last so many.
    With `sparse` below 1, of each piece that is cached, only that share of the positions, those with the greatest
    scores, is looked at, and no other value is read (Sheng et al. 2023, section 5).
    """

    q: Tensor
    pos: Tensor
    scale: float
    window: int = 0
    sparse: float = 1.0

    def of_rows(self, start: int, stop: int) -> Query:
        return replace(self, q=self.q[start:stop], pos=self.pos[start:stop])

    @property
    def at(self) -> Tensor:
        """The positions of the queries, [B, L]."""
        import torch

        return self.pos[:, None] + torch.arange(self.q.shape[3], device=self.q.device)

    def visible(self, positions: int, common: dict[Any, Any]) -> Tensor:
        """Which of the first so many positions a query of one position sees, its own included: [B, 1, 1, T]. Made once
        for all layers."""
        import torch

        key = "visible", self.window
        if key not in common:
            t, own = torch.arange(positions, device=self.q.device), self.pos[:, None]
            seen = (t <= own) & (t > own - self.window) if self.window else t <= own
            common[key] = seen[:, None, None, :]
        return common[key]


def attend_cached(query: Query, keys: Tensor, values: Tensor, start: int) -> Partial:
    """Over the positions start, start + 1, ... of a cache: keys and values [B, T, K, D]; those from pos[b] on are
    not in the cache yet, and are not seen."""
    import torch

    t = start + torch.arange(keys.shape[1], device=keys.device)
    visible = (t < query.pos[:, None])[:, None, :]
    if query.window:
        visible = visible & (t > query.at[:, :, None] - query.window)
    return _partial(query, keys, values, visible, sparse=query.sparse)


def attend_piece(
    query: Query, piece: Tensor, decoded: Callable[[Tensor], tuple[Tensor, Tensor]], start: int
) -> Partial:
    """The same over a piece of a cache as it is kept, [T, 2, B, width]; `decoded` gives its keys and values. On the CPU
    some rows at a time: what is made of the piece for a product is counted nowhere."""
    import torch

    n, together = piece.shape[2], piece.shape[2]
    if piece.device.type == "cpu":
        row_bytes = 4 * piece.shape[0] * 2 * query.q.shape[1] * query.q.shape[4]
        together = max(1, _TOGETHER_BYTES // max(1, row_bytes))
    if together >= n:
        return attend_cached(query, *decoded(piece), start)
    parts = [
        attend_cached(query.of_rows(at, at + together), *decoded(piece[:, :, at : at + together]), start)
        for at in range(0, n, together)
    ]
    return Partial(*(torch.cat(t) for t in zip(*((p.greatest, p.total, p.summed) for p in parts), strict=True)))


def attend_new(query: Query, keys: Tensor, values: Tensor) -> Partial:
    """Over the keys and values [B, L, K, D] of the queries' own positions."""
    import torch

    l = torch.arange(keys.shape[1], device=keys.device)  # noqa: E741
    visible = l[None, :] <= l[:, None]
    if query.window:
        visible = visible & (l[None, :] > l[:, None] - query.window)
    return _partial(query, keys, values, visible[None])


def _partial(query: Query, keys: Tensor, values: Tensor, visible: Tensor, sparse: float = 1.0) -> Partial:
    """`visible` is [B or 1, L or 1, T]."""
    import torch

    B, K, G, L, D = query.q.shape
    rows = query.q.reshape(B, K, G * L, D)
    scores = torch.matmul(rows, keys.permute(0, 2, 3, 1)).reshape(B, K, G, L, -1).float() * query.scale
    scores = torch.where(visible[:, None, None], scores, -math.inf)
    values = values.permute(0, 2, 1, 3)
    T = scores.shape[-1]
    if sparse < 1.0 and L == 1:
        kept = max(1, math.ceil(sparse * T))
        scores, ids = scores.topk(kept, dim=-1)
        index = ids.reshape(B, K, G * L * kept, 1).expand(-1, -1, -1, D)
        chosen = values.gather(2, index).reshape(B, K, G, L, kept, D)
        powers, greatest = _powers(scores)
        summed = (powers[..., None] * chosen.float()).sum(dim=-2)
    else:
        powers, greatest = _powers(scores)
        summed = torch.matmul(powers.to(values.dtype).reshape(B, K, G * L, T), values).reshape(B, K, G, L, D).float()
    return Partial(greatest, powers.sum(dim=-1, keepdim=True), summed)


def _powers(scores: Tensor) -> tuple[Tensor, Tensor]:
    """exp(s - m) and m; where nothing is visible all are 0, and m is low and finite."""
    import torch

    greatest = scores.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    return torch.exp(scores - greatest), greatest


def merge(parts: Sequence[Partial]) -> Tensor:
    """Attention over all pieces together, [B, K, G, L, D], f32."""
    import torch

    greatest = torch.stack([part.greatest for part in parts]).amax(dim=0)
    weights = [torch.exp(part.greatest - greatest) for part in parts]
    total = sum((w * part.total for w, part in zip(weights, parts, strict=True)), torch.zeros_like(greatest))
    summed = sum((w * part.summed for w, part in zip(weights, parts, strict=True)), torch.zeros_like(parts[0].summed))
    return summed / total


def attend_filled(query: Query, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
    """Of queries of one position over a cache that they are in, keys and values [B, T, K, D] of which they see what is
    `visible` [B, 1, 1, T], all where None: PyTorch's fused attention, [B, K, G, 1, D]. The queries that share keys and
    values are taken together, as rows of one product."""
    from torch.nn import functional

    k, v = keys.permute(0, 2, 1, 3), values.permute(0, 2, 1, 3)
    made = functional.scaled_dot_product_attention(query.q.squeeze(3), k, v, visible, scale=query.scale)
    return made.unsqueeze(3)


def attend_all(query: Query, keys: Tensor, values: Tensor) -> Tensor:
    """Over new keys and values alone, where the cache is empty: PyTorch's fused attention, [B, K, G, L, D]."""
    import torch
    from torch.nn import functional

    B, K, G, L, D = query.q.shape
    if G > 1 and query.q.device.type == "cpu":  # some rows at a time: the copies below are counted nowhere
        together = max(1, _TOGETHER_BYTES // (2 * K * G * L * D * query.q.itemsize))
        if together < B:
            whole = torch.empty_like(query.q, memory_format=torch.contiguous_format)
            for at in range(0, B, together):
                rows = slice(at, at + together)
                whole[rows] = attend_all(query.of_rows(at, at + together), keys[rows], values[rows])
            return whole
    q = query.q.reshape(B, K * G, L, D)
    k, v = (
        t.permute(0, 2, 1, 3).repeat_interleave(G, dim=1) if G > 1 else t.permute(0, 2, 1, 3) for t in (keys, values)
    )
    mask = None
    if query.window and query.window < L:
        l = torch.arange(L, device=q.device)  # noqa: E741
        mask = (l[None, :] <= l[:, None]) & (l[None, :] > l[:, None] - query.window)
    made = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=query.scale)
    return made.reshape(B, K, G, L, D)
