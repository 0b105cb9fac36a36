"""Kernels that reduce dimensions: contraction, sums, greatest values, norms and softmax."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import Kernel, TensorCall, axes, in_blocks, visible
from shardwright.backends.torch.tensors import NamedTensor
from shardwright.ir import ops
from shardwright.ir.operation import Operation
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor


def _contract(operation: ops.Contract, call: TensorCall) -> Tensor:
    """Sums of products; of integers and bools in 64 bits, of floats wider than the operands' in the result's format."""
    left, right, result = call.tensor(0), call.tensor(1), call.result
    a, b = left.tensor, right.tensor
    sums = sums_by_name(left.names, right.names, result.names)
    if not left.dtype.is_float:
        return call.functions.product_in_parts(sums, a, b, call.torch.int64)
    if left.dtype.is_f8 or (result.dtype is DType.F32 and left.dtype is not DType.F32):
        return call.functions.product_in_parts(sums, a, b, call.torch.float32)
    (summed, *others) = operation.dims
    rows, columns = left.names[:-1], [name for name in right.names if name != summed]
    plain = not others and rows and left.names[-1] == summed and len(columns) == 1 and columns[0] not in rows
    if plain and result.names == (*rows, *columns):
        return call.torch.matmul(a, b if right.names[0] == summed else b.mT)
    return call.torch.einsum(sums, a, b)


def sums_by_name(*names: Sequence[str]) -> str:
    """The einsum of a product of two operands with these dimensions, and the result's."""
    letters = dict(zip(dict.fromkeys(itertools.chain(*names)), string.ascii_letters, strict=False))
    left, right, made = ("".join(letters[name] for name in each) for each in names)
    return f"{left},{right}->{made}"


def _sum(operation: ops.Sum, call: TensorCall) -> Tensor:
    value = call.tensor(0)
    return value.tensor.sum(dim=axes(value, operation.dims))


def _max(operation: ops.Max, call: TensorCall) -> Tensor:
    value = call.tensor(0)
    return value.tensor.amax(dim=axes(value, operation.dims))


def _cumsum(operation: ops.Cumsum, call: TensorCall) -> Tensor:
    value = call.tensor(0)
    return value.tensor.cumsum(dim=value.names.index(operation.dim))


def _argmax(operation: ops.Argmax, call: TensorCall) -> Tensor:
    """The first of the greatest: so the documentation of `torch.max` has it. Bools have no argmax there."""
    value = call.tensor(0)
    tensor = value.tensor.long() if value.dtype is DType.BOOL else value.tensor
    return tensor.argmax(dim=value.names.index(operation.dim))


def _topk(operation: ops.Topk, call: TensorCall) -> tuple[Tensor, ...]:
    """Takes of each block its share."""
    value = call.tensor(0)
    blocks, n, axis = in_blocks(value, operation.dim, operation.by)
    values, within = call.named(call.functions.topk(blocks, axis, operation.share(n)), "values", "indices")
    if value.held is None:
        return values, within
    ids = call.positions(value, operation.dim, value.names).expand(value.shape)
    whole = NamedTensor(ids, value.names, DType.INT32, value.held)
    numbers = in_blocks(whole, operation.dim, operation.by)[0].gather(axis, within)
    extents = [dim.size for dim in call.result.dims]
    return values.reshape(extents), numbers.reshape(extents)


def _norm(operation: ops.Layernorm | ops.Rmsnorm, call: TensorCall) -> Tensor:
    value = call.tensor(0)
    function = call.functions.rmsnorm if isinstance(operation, ops.Rmsnorm) else call.functions.layernorm
    normed = function(value.tensor, axes(value, operation.dims), operation.eps)
    if len(call.args) > 1:
        normed = normed * call.operand(1, call.result.dtype)
    return normed + call.operand(2, call.result.dtype) if len(call.args) > 2 else normed


def _softmax(operation: ops.Softmax, call: TensorCall) -> Tensor:
    value = call.tensor(0)
    over = axes(value, operation.dims)
    if operation.causal is None:
        return call.functions.softmax(value.tensor, over)
    keys, queries = (value, operation.dims[0]), (value, operation.causal)
    pos = call.index(1, value.names) if len(call.args) > 1 else 0
    mask = visible(call, call.positions(*keys, value.names), queries, operation.window, value.names, pos)
    return call.functions.softmax(value.tensor, over, mask)


KERNELS: dict[type[Operation], Kernel] = {
    ops.Contract: _contract,
    ops.Sum: _sum,
    ops.Max: _max,
    ops.Cumsum: _cumsum,
    ops.Argmax: _argmax,
    ops.Topk: _topk,
    ops.Layernorm: _norm,
    ops.Rmsnorm: _norm,
    ops.Softmax: _softmax,
}
