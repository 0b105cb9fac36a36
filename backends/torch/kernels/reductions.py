"""Kernels that reduce dimensions: contraction, sums, greatest values, norms and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import Call, Kernel, axes, in_blocks, operand, positions
from shardwright.backends.torch.tensors import Named, aligned
from shardwright.ir import ops
from shardwright.ir.diagnostics import fault
from shardwright.ir.operation import Operation
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor


def contract(left: Named, right: Named, dims: Sequence[str], names: Sequence[str]) -> Tensor:
    """Sums of products over `dims`, with the dimensions `names`: one product of matrices, or a batch of them. Of bools
    the sum is how many products there are."""
    import torch

    batch = [n for n in left.names if n in right.names and n not in dims]
    rows = [n for n in left.names if n not in right.names]
    columns = [n for n in right.names if n not in left.names]
    a, b = aligned(left, (*batch, *rows, *dims)), aligned(right, (*batch, *dims, *columns))
    n_summed = math.prod(a.shape[len(batch) + len(rows) :])
    outer = a.shape[: len(batch)]
    row_shape, column_shape = a.shape[len(outer) : len(outer) + len(rows)], b.shape[len(outer) + len(dims) :]
    n_rows, n_columns = math.prod(row_shape), math.prod(column_shape)
    first, second = a.reshape([*outer, n_rows, n_summed]), b.reshape([*outer, n_summed, n_columns])
    if left.dtype is DType.BOOL:
        first, second = first.long(), second.long()
    product = torch.matmul(first, second).reshape([*outer, *row_shape, *column_shape])
    made = (*batch, *rows, *columns)
    return product.permute([made.index(name) for name in names])


def _contract(operation: ops.Contract, call: Call) -> Tensor:
    return contract(call.tensor(0), call.tensor(1), operation.dims, call.result.names)


def _sum(operation: ops.Sum, call: Call) -> Tensor:
    value = call.tensor(0)
    return value.tensor.sum(dim=axes(value, operation.dims))


def _max(operation: ops.Max, call: Call) -> Tensor:
    value = call.tensor(0)
    return value.tensor.amax(dim=axes(value, operation.dims))


def _cumsum(operation: ops.Cumsum, call: Call) -> Tensor:
    value = call.tensor(0)
    return value.tensor.cumsum(dim=value.names.index(operation.dim))


def _argmax(operation: ops.Argmax, call: Call) -> Tensor:
    """The first of the greatest, as numpy has it; `torch.argmax` promises no order."""
    import torch

    value = call.tensor(0)
    at = value.names.index(operation.dim)
    indices = positions(value.size(operation.dim), operation.dim, value.names, call.device)
    is_greatest = value.tensor == value.tensor.amax(dim=at, keepdim=True)
    first = torch.where(is_greatest | value.tensor.isnan(), indices, value.size(operation.dim)).amin(dim=at)
    return first.clamp(max=value.size(operation.dim) - 1)


def _topk(operation: ops.Topk, call: Call) -> tuple[Tensor, ...]:
    """In descending order, the first of equals first; NaN before all. Of each block its share."""
    import torch

    value = call.tensor(0)
    at = value.names.index(operation.dim)
    blocks, n = in_blocks(value, operation.dim, operation.by)
    if operation.k % n:
        by = " ".join(operation.by)
        raise fault("not-divisible", f"topk: k={operation.k} is not divisible by the {n} blocks of {by}")
    k = operation.k // n
    values, within = torch.sort(blocks, dim=at + 1, descending=True, stable=True)
    ids = positions(value.size(operation.dim), operation.dim, value.names, call.device, value.held)
    whole = Named(ids.expand(value.tensor.shape), value.names, DType.INT32, value.held)
    numbers = in_blocks(whole, operation.dim, operation.by)[0].gather(at + 1, within)
    extents = [dim.size for dim in call.result.dims]
    return tuple(each.narrow(at + 1, 0, k).reshape(extents) for each in (values, numbers))


def _layernorm(operation: ops.Layernorm, call: Call) -> Tensor:
    value = call.tensor(0)
    over = axes(value, operation.dims)
    wide = value.tensor.float()
    return _scaled(wide - wide.mean(dim=over, keepdim=True), over, operation.eps, call)


def _rmsnorm(operation: ops.Rmsnorm, call: Call) -> Tensor:
    value = call.tensor(0)
    return _scaled(value.tensor.float(), axes(value, operation.dims), operation.eps, call)


def _scaled(x: Tensor, over: tuple[int, ...], eps: float, call: Call) -> Tensor:
    import torch

    normed = x * torch.rsqrt((x * x).mean(dim=over, keepdim=True) + eps)
    if len(call.args) > 1:
        normed = normed * operand(call.args[1], call.result.dtype, call.result.names, call.device)
    if len(call.args) > 2:
        normed = normed + operand(call.args[2], call.result.dtype, call.result.names, call.device)
    return normed


def _softmax(operation: ops.Softmax, call: Call) -> Tensor:
    import torch

    value = call.tensor(0)
    scores, names = value.tensor.float(), value.names
    if operation.causal is not None:
        t = positions(value.size(operation.dims[0]), operation.dims[0], names, call.device, value.held)
        l = positions(value.size(operation.causal), operation.causal, names, call.device, value.held)  # noqa: E741
        if len(call.args) > 1:
            l = l + operand(call.args[1], DType.INT32, names, call.device)  # noqa: E741
        visible = t <= l
        if operation.window:
            visible = visible & (t > l - operation.window)
        scores = torch.where(visible, scores, -math.inf)
    over = axes(value, operation.dims)
    powers = torch.exp(scores - scores.amax(dim=over, keepdim=True))
    return powers / powers.sum(dim=over, keepdim=True)


KERNELS: dict[type[Operation], Kernel] = {
    ops.Contract: _contract,
    ops.Sum: _sum,
    ops.Max: _max,
    ops.Cumsum: _cumsum,
    ops.Argmax: _argmax,
    ops.Topk: _topk,
    ops.Layernorm: _layernorm,
    ops.Rmsnorm: _rmsnorm,
    ops.Softmax: _softmax,
}
