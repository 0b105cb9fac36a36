"""Attention by kernels of PyTorch, and as products and a softmax where none fits or none gives the log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.kernels.call import Call, Kernel, as_arg, operand, positions
from shardwright.backends.torch.tensors import Named, aligned, rounded
from shardwright.ir import ops
from shardwright.ir.operation import Number, Operation
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor

_MOST_MASKED = 1 << 24
"""So many elements of a mask are made at once."""


def _attend(operation: ops.Attend, call: Call) -> Tensor | tuple[Tensor, ...]:
    """Queries are taken as [batch S, heads H, rows R]: S has the dimensions of keys and values, R those of which all
    queries are rows of one product, positions or, of one position, heads."""
    import torch

    q, k, v = (call.tensor(i) for i in range(3))
    T, rows = operation.along, [name for name in q.names if name != operation.contracted]
    width = operation.width([as_arg(arg) for arg in call.args])
    shared = [name for name in rows if name in k.names or name in v.names]
    own = [name for name in rows if name not in shared]
    line = [operation.causal] if operation.causal in own and q.size(operation.causal) > 1 else own
    heads = [name for name in own if name not in line]
    sizes = [[q.size(name) for name in names] for names in (shared, heads, line)]
    S, H, R = map(math.prod, sizes)
    queries = aligned(q, (*shared, *heads, *line, operation.contracted)).reshape(S, H, R, -1)
    keys, values = (
        aligned(x, (*shared, T, last)).expand(*sizes[0], -1, -1).reshape(S, 1, x.size(T), x.size(last))
        for x, last in ((k, operation.contracted), (v, width))
    )
    is_pair = call.held is not None and call.held.kind.is_pair
    kernel = _kernel(operation, queries, values, with_lse=operation.lse or is_pair)
    if _kernels_mask(operation, call) and line == ([operation.causal] if operation.causal else own):
        made = kernel(operation, queries, keys, values, None)
    else:
        mask = _visible(operation, call, (*shared, *heads, *line, T))
        at = len(shared), len(shared) + len(heads)
        groups = mask.shape[: at[0]], mask.shape[at[0] : at[1]]
        full = [n if math.prod(has) > 1 else has for n, has in zip(sizes[:2], groups, strict=False)]
        full.append(sizes[2])
        mask = mask.expand(*full[0], *full[1], *full[2], k.size(T)).reshape(*map(math.prod, full), k.size(T))
        some = max(1, _MOST_MASKED // (mask.shape[0] * mask.shape[1] * mask.shape[3]))
        parts = [
            kernel(operation, queries[:, :, i : i + some], keys, values, mask[:, :, i : i + some])
            for i in range(0, R, some)
        ]
        made = tuple(torch.cat(each, dim=2) if len(parts) > 1 else each[0] for each in zip(*parts, strict=True))
        seen = mask.any(dim=-1)
        made = (torch.where(seen[..., None], made[0], 0), *(torch.where(seen, lse, -math.inf) for lse in made[1:]))
    order = [[*shared, *heads, *line].index(name) for name in rows]
    every = [n for each in sizes for n in each]
    mean = made[0].reshape(*every, -1).permute(*order, len(order))
    if len(made) == 1:
        return mean
    lse = made[1].reshape(every).permute(order)
    if is_pair:
        return torch.complex(rounded(mean, q.dtype).float(), lse[..., None].expand(mean.shape))
    return (mean, lse) if operation.lse else mean


def sparse_attention(
    operation: ops.Attend, args: Sequence[Named], pos: Named, share: float, names: Sequence[str]
) -> Tensor:
    """Attention of queries of one position each, which of the positions before their own look at that share with the
    greatest scores, and read no other values (Sheng et al. 2023, section 5)."""
    import torch

    q, k, v = args
    T, D, L = operation.along, operation.contracted, operation.causal
    rows = [name for name in q.names if name not in (D, L)]
    shared = [name for name in rows if name in k.names]
    own = [name for name in rows if name not in shared]
    width = next(name for name in v.names if name != T and name not in shared)
    S, R = (math.prod(q.size(name) for name in dims) for dims in (shared, own))
    queries = aligned(q, (*shared, *own, str(L), D)).reshape(S, R, -1)
    keys, values = (aligned(x, (*shared, T, last)).reshape(S, -1, x.size(last)) for x, last in ((k, D), (v, width)))
    at = aligned(pos, shared).expand([q.size(name) for name in shared]).reshape(S, 1, 1)
    t = torch.arange(keys.shape[1], device=keys.device)
    scores = torch.matmul(queries.float(), keys.float().mT) * operation.scale
    before = t < at
    if operation.window:
        before = before & (t > at - operation.window)
    kept = max(1, math.ceil(share * max(1, keys.shape[1] - 1)))
    chosen, where = torch.where(before, scores, -math.inf).topk(min(kept, keys.shape[1]), dim=-1)
    own_index = at.expand(S, R, 1)
    where, chosen = torch.cat([where, own_index], -1), torch.cat([chosen, scores.gather(-1, own_index)], -1)
    weights, _ = softmax_weights(chosen, -1)
    looked = values[:, None].expand(-1, R, -1, -1).gather(2, where[..., None].expand(-1, -1, -1, values.shape[-1]))
    made = (weights.to(values.dtype).float()[..., None] * looked.float()).sum(dim=-2)
    order = (*shared, *own, str(L), width)
    return made.reshape([1 if n == L else (v if n == width else q).size(n) for n in order]).permute(
        [order.index(name) for name in names]
    )


def _kernels_mask(operation: ops.Attend, call: Call) -> bool:
    """True if a query sees all positions, or those up to its own number, which kernels know by themselves."""
    at = operation.at("pos")
    pos = None if at is None else call.args[at]
    starts = pos is None or (isinstance(pos, Number) and pos.value == 0)
    split = [x.held is not None and x.held.kind.split(name) for x, name in _numbered(operation, call)]
    return starts and not operation.window and operation.at("length") is None and not any(split)


def _numbered(operation: ops.Attend, call: Call) -> list[tuple[Named, str]]:
    """The operands that have positions, each with the dimension that numbers them."""
    queries = [(call.tensor(0), operation.causal)] if operation.causal is not None else []
    return [(call.tensor(1), operation.along), *queries]


def _visible(operation: ops.Attend, call: Call, names: Sequence[str]) -> Tensor:
    """Which positions a query sees, with extent 1 in the dimensions on which that does not depend."""
    import torch

    (k, T), *queries = _numbered(operation, call)
    t = positions(k.size(T), T, names, call.device, k.held)
    seen = torch.ones((1,) * len(names), dtype=torch.bool, device=call.device)
    given = {name: operand(call.args[3 + i], DType.INT32, names, call.device) for i, name in enumerate(operation.given)}
    for q, L in queries:
        last = positions(q.size(L), L, names, call.device, q.held) + given.get("pos", 0)
        seen = seen & (t <= last)
        if operation.window:
            seen = seen & (t > last - operation.window)
    return seen & (t < given["length"]) if "length" in given else seen


def _kernel(operation: ops.Attend, q: Tensor, v: Tensor, *, with_lse: bool) -> Callable[..., tuple[Tensor, ...]]:
    """A function that computes [S, H, R, W], and [S, H, R] where the log-sum-exp is asked for, of q [S, H, R, D],
    k [S, 1, T, D], v [S, 1, T, W] and what is visible, [S or 1, H or 1, R, T], where None is the kernels' own mask."""
    if operation.softcap:
        return _decomposed
    if q.device.type == "cpu" and v.shape[-1] == q.shape[-1]:
        return _by_aten
    return _decomposed if with_lse else _by_pytorch


def _by_aten(operation: ops.Attend, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    import torch

    aten: Any = torch.ops.aten
    causal = visible is None and operation.causal is not None
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))  # it reads rows as if they lay so
    return aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=_added(visible, q), scale=operation.scale
    )


def _by_pytorch(operation: ops.Attend, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> tuple[Tensor]:
    from torch.nn import functional

    causal = visible is None and operation.causal is not None
    mask = _added(visible, q)
    made = functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=operation.scale, enable_gqa=q.shape[1] > 1
    )
    return (made,)


def _added(visible: Tensor | None, q: Tensor) -> Tensor | None:
    """A mask as what is added to scores."""
    import torch

    return None if visible is None else torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, -math.inf)


def _decomposed(
    operation: ops.Attend, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None
) -> tuple[Tensor, Tensor]:
    import torch

    scores = torch.matmul(q.float(), k.float().mT) * operation.scale
    if operation.softcap:
        scores = operation.softcap * torch.tanh(scores / operation.softcap)
    if visible is None and operation.causal is not None:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    scores = scores if visible is None else torch.where(visible, scores, -math.inf)
    weights, lse = softmax_weights(scores, -1)
    return torch.matmul(weights.to(v.dtype).float(), v.float()), lse.squeeze(-1)


def softmax_weights(scores: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """exp(s) over its sum along a dimension, 0 where all s are -inf; and the logarithm of the sum, with extent 1."""
    import torch

    greatest = scores.amax(dim=dim, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    powers = torch.exp(scores - greatest)
    total = powers.sum(dim=dim, keepdim=True)
    return powers / torch.where(total == 0, 1, total), greatest + torch.log(total)


def _join_attention(_operation: ops.JoinAttention, call: Call) -> tuple[Tensor, ...]:
    import torch

    one, lse_one, other, lse_other = (call.tensor(i).tensor for i in range(4))
    weights, lse = softmax_weights(torch.stack([lse_one, lse_other], dim=-1), -1)
    return weights[..., :1] * one + weights[..., 1:] * other, lse.squeeze(-1)


KERNELS: dict[type[Operation], Kernel] = {ops.Attend: _attend, ops.JoinAttention: _join_attention}
