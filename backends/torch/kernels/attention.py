"""Attention: queries, keys and values brought into the order of the function that computes it, and what they see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import Kernel, TensorCall, as_arg, reshaped, visible
from shardwright.backends.torch.kernels.pages import gathered_pages, positions_of_pages
from shardwright.backends.torch.tensors import NamedTensor, aligned
from shardwright.ir import ops
from shardwright.ir.operation import Number, Operation

if TYPE_CHECKING:
    from torch import Tensor


def _attend(operation: ops.Attend, call: TensorCall) -> Tensor | tuple[Tensor, ...]:
    """Queries are taken as [batch S, heads H, rows R]: S has the dimensions of keys and values, R those of which all
    queries are rows of one product, positions or, of one position, heads."""
    q, k, v = call.tensor(0), *(_read(operation, i, call) for i in (1, 2))
    T, rows = operation.along, [name for name in q.names if name != operation.contracted]
    width = operation.width([as_arg(arg) for arg in call.args])
    shared = [name for name in rows if name in k.names or name in v.names]
    own = [name for name in rows if name not in shared]
    line = [operation.causal] if operation.causal in own and q.size(operation.causal) > 1 else own
    heads = [name for name in own if name not in line]
    order = (*shared, *heads, *line)
    S, H, R = (math.prod(q.size(name) for name in names) for names in (shared, heads, line))
    ordered = aligned(q, (*order, operation.contracted))
    extents = [q.size(name) for name in (*order, operation.contracted)]
    queries = reshaped(ordered, extents, (S, H, R, extents[-1]))
    keys, values = (
        _over(x, shared, [q.size(n) for n in shared], last, T) for x, last in ((k, operation.contracted), (v, width))
    )
    is_pair = call.held is not None and call.held.kind.is_pair
    by_kernel = _kernels_mask(operation, call) and line == ([operation.causal] if operation.causal else own)
    mask = None if by_kernel else _visible(operation, call, (*order, T))
    if mask is not None:
        shape = [[q.size(n) if _seen_by(operation, call, names) else 1 for n in names] for names in (shared, heads)]
        every = (*shape[0], *shape[1], *(q.size(n) for n in line), k.size(T))
        mask = reshaped(mask.expand(every), every, (math.prod(shape[0]), math.prod(shape[1]), R, k.size(T)))
        mask = call.named(mask, "visible")
    causal = by_kernel and operation.causal is not None
    made = call.functions.attend(
        queries,
        keys,
        values,
        mask,
        causal=causal,
        scale=operation.scale,
        softcap=operation.softcap,
        lse=operation.lse or is_pair,
    )
    back = [order.index(name) for name in rows]
    extents = [q.size(name) for name in order]

    def returned(tensor: Tensor, *last: int) -> Tensor:
        """In the order of the query's dimensions."""
        tensor = reshaped(tensor, (S, H, R, *last), (*extents, *last))
        axes = (*back, len(back)) if last else back
        return tensor if list(axes) == sorted(axes) else tensor.permute(*axes)

    if not operation.lse and not is_pair:
        return returned(call.named(made, "mean"), v.size(width))
    mean, total = call.named(made, "mean", "lse")
    mean, total = returned(mean, v.size(width)), returned(total)
    if is_pair:
        rounded = mean.to(q.tensor.dtype).float()
        return call.torch.complex(rounded, total[..., None].expand(mean.shape))
    return mean, total


def _read(operation: ops.Attend, at: int, call: TensorCall) -> NamedTensor:
    """Keys or values, of pages those of each row."""
    return call.tensor(at) if operation.page is None else gathered_pages(operation, at, call)


def _over(x: NamedTensor, shared: Sequence[str], sizes: Sequence[int], last: str, along: str) -> Tensor:
    """Keys or values as [S, 1, T, last]; they may lack a dimension that the others have."""
    names, tail = (*shared, along, last), (x.size(along), x.size(last))
    made, extents = aligned(x, names), [x.size(n) if n in x.names else 1 for n in names]
    if extents[: len(shared)] != list(sizes):
        made, extents = made.expand((*sizes, *tail)), [*sizes, *tail]
    return reshaped(made, extents, (math.prod(sizes), 1, *tail))


def sparse_attention(
    operation: ops.Attend, args: Sequence[NamedTensor], pos: NamedTensor, share: float, names: Sequence[str]
) -> Tensor:
    """Attention of queries of one position each, which of the positions before their own that they see look at that
    share, rounded up, with the greatest scores (Sheng et al. 2023, section 5). A row's are the same whatever other rows
    there are; one that has ended may be at a position behind the cache."""
    import torch

    from shardwright.backends.torch.functions import softmax_weights

    q, k, v = args
    T, D, L = operation.along, operation.contracted, operation.causal
    rows = [name for name in q.names if name not in (D, L)]
    shared = [name for name in rows if name in k.names]
    own = [name for name in rows if name not in shared]
    width = next(name for name in v.names if name != T and name not in shared)
    S, R = (math.prod(q.size(name) for name in dims) for dims in (shared, own))
    queries = aligned(q, (*shared, *own, str(L), D)).reshape(S, R, -1)
    keys, values = (aligned(x, (*shared, T, last)).reshape(S, -1, x.size(last)) for x, last in ((k, D), (v, width)))
    at = aligned(pos, shared).expand([q.size(name) for name in shared]).reshape(S, 1, 1).clamp(max=k.size(T) - 1)
    t = torch.arange(keys.shape[1], device=keys.device)
    scores = torch.matmul(queries.float(), keys.float().mT) * operation.scale
    if operation.softcap:
        scores = operation.softcap * torch.tanh(scores / operation.softcap)
    before = t < at
    if operation.window is not None:
        before = before & (t > at - operation.window)
    part, whole = Fraction(share).limit_denominator(1 << 20).as_integer_ratio()  # 0.15 of 100 are 15
    kept = -(-before.sum(-1, keepdim=True) * part // whole).clamp(max=-1)
    chosen, where = torch.where(before, scores, -math.inf).topk(int(kept.max()), dim=-1)
    chosen = chosen.where(torch.arange(chosen.shape[-1], device=keys.device) < kept, -math.inf)
    own_index = at.expand(S, R, 1)
    where, chosen = torch.cat([where, own_index], -1), torch.cat([chosen, scores.gather(-1, own_index)], -1)
    weights, _ = softmax_weights(chosen, -1)
    looked = values[:, None].expand(-1, R, -1, -1).gather(2, where[..., None].expand(-1, -1, -1, values.shape[-1]))
    made = (weights.to(values.dtype).float()[..., None] * looked.float()).sum(dim=-2)
    order = (*shared, *own, str(L), width)
    return made.reshape([1 if n == L else (v if n == width else q).size(n) for n in order]).permute(
        [order.index(name) for name in names]
    )


def _kernels_mask(operation: ops.Attend, call: TensorCall) -> bool:
    """True if a query sees all positions, or those up to its own number, which kernels know by themselves."""
    at = operation.at("pos")
    pos = None if at is None else call.args[at]
    starts = pos is None or (isinstance(pos, Number) and pos.value == 0)
    split = [x.held is not None and x.held.kind.split(name) for x, name in _numbered(operation, call)]
    masks = operation.has_window or operation.at("length") is not None or operation.page is not None
    return starts and not masks and not any(split)


def _numbered(operation: ops.Attend, call: TensorCall) -> list[tuple[NamedTensor, str]]:
    """The operands that have positions, each with the dimension that numbers them."""
    queries = [(call.tensor(0), operation.causal)] if operation.causal is not None else []
    return [(call.tensor(1), operation.along), *queries]


def _visible(operation: ops.Attend, call: TensorCall, names: Sequence[str]) -> Tensor | None:
    keys, *queries = _numbered(operation, call)
    given = {name: call.index(3 + i, names) for i, name in enumerate(operation.given) if name != "pages"}
    window, here = given.get("window", operation.window), None
    if operation.page is None:
        t = call.positions(*keys, names)
    else:
        t, here = positions_of_pages(operation, names, call)
    seen = visible(call, t, queries[0] if queries else None, window, names, given.get("pos", 0), given.get("length"))
    return seen if here is None else here if seen is None else seen & here


def _seen_by(operation: ops.Attend, call: TensorCall, names: Sequence[str]) -> bool:
    """True if it depends on one of these dimensions what is visible."""
    of = [arg for arg in call.args[3:] if isinstance(arg, NamedTensor)]
    return operation.causal in names or any(name in arg.names for arg in of for name in names)


def _join_attention(_operation: ops.JoinAttention, call: TensorCall) -> tuple[Tensor, ...]:
    return call.named(call.functions.join_attention(*(call.tensor(i).tensor for i in range(4))), "joined", "lse")


KERNELS: dict[type[Operation], Kernel] = {ops.Attend: _attend, ops.JoinAttention: _join_attention}
