"""Kernels that move no number to another: parts, joins, and the same numbers under other names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import Kernel, TensorCall, in_blocks, reshaped
from shardwright.backends.torch.tensors import NamedTensor, aligned
from shardwright.ir import ops
from shardwright.ir.operation import Operation

if TYPE_CHECKING:
    from torch import Tensor


def _take(operation: ops.Take, call: TensorCall) -> Tensor:
    value = call.tensor(0)
    if operation.stop is None:
        return value.tensor.select(value.names.index(operation.dim), operation.start)
    blocks, n, axis = in_blocks(value, operation.dim, operation.by)
    start, stop = operation.range_of(n)
    return _merged(blocks.narrow(axis, start, stop - start), axis, operation.dim, call)


def _concat(operation: ops.Concat, call: TensorCall) -> Tensor:
    names = call.result.names
    values = [call.tensor(i) for i in range(len(call.args))]
    ordered = [
        NamedTensor(aligned(value, names), names, value.dtype, value.held, [value.size(name) for name in names])
        for value in values
    ]
    parts, _, axes = zip(*(in_blocks(value, operation.dim, operation.by) for value in ordered), strict=True)
    return _merged(call.torch.cat(list(parts), dim=axes[0]), axes[0], operation.dim, call)


def _merged(tensor: Tensor, axis: int, dim: str, call: TensorCall) -> Tensor:
    """The dimension whole, where it is open as blocks."""
    if axis == call.result.names.index(dim):
        return tensor
    return tensor.reshape([each.size for each in call.result.dims])


def _same(_operation: Operation, call: TensorCall) -> Tensor:
    return call.tensor(0).tensor


def _reshape(_operation: ops.Split, call: TensorCall) -> Tensor:
    value = call.tensor(0)
    return reshaped(value.tensor, value.shape, [dim.size for dim in call.result.dims])


def _merge(operation: ops.Merge, call: TensorCall) -> Tensor:
    value = call.tensor(0)
    return aligned(value, operation.side_by_side(value.names)).reshape(tuple(dim.size for dim in call.result.dims))


KERNELS: dict[type[Operation], Kernel] = {
    ops.Take: _take,
    ops.Concat: _concat,
    ops.Alias: _same,
    ops.Rename: _same,
    ops.Split: _reshape,
    ops.Merge: _merge,
}
