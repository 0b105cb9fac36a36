"""Kernels that move no number to another: parts, joins, and the same numbers under other names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import Call, Kernel, in_blocks
from shardwright.backends.torch.tensors import Named, aligned
from shardwright.ir import ops
from shardwright.ir.diagnostics import fault
from shardwright.ir.operation import Operation

if TYPE_CHECKING:
    from torch import Tensor


def _take(operation: ops.Take, call: Call) -> Tensor:
    value = call.tensor(0)
    at = value.names.index(operation.dim)
    if operation.stop is None:
        return value.tensor.select(at, operation.start)
    blocks, n = in_blocks(value, operation.dim, operation.by)
    if operation.start % n or operation.stop % n:
        by = " ".join(operation.by)
        message = f"take: {operation.start}:{operation.stop} does not divide into the {n} blocks of {by}"
        raise fault("not-divisible", message)
    start, stop = operation.start // n, operation.stop // n
    return blocks.narrow(at + 1, start, stop - start).reshape([dim.size for dim in call.result.dims])


def _concat(operation: ops.Concat, call: Call) -> Tensor:
    import torch

    names = call.result.names
    at, extents = names.index(operation.dim), [dim.size for dim in call.result.dims]
    values = [call.tensor(i) for i in range(len(call.args))]
    ordered = [Named(aligned(value, names), names, value.dtype, value.held) for value in values]
    return torch.cat([in_blocks(v, operation.dim, operation.by)[0] for v in ordered], dim=at + 1).reshape(extents)


def _same(_operation: Operation, call: Call) -> Tensor:
    return call.tensor(0).tensor


def _reshape(_operation: ops.Split, call: Call) -> Tensor:
    return call.tensor(0).tensor.reshape([dim.size for dim in call.result.dims])


def _merge(operation: ops.Merge, call: Call) -> Tensor:
    value = call.tensor(0)
    names: list[str] = []
    for name in value.names:
        if name == operation.parts[0]:
            names.extend(operation.parts)
        elif name not in operation.parts:
            names.append(name)
    return aligned(value, names).reshape([dim.size for dim in call.result.dims])


KERNELS: dict[type[Operation], Kernel] = {
    ops.Take: _take,
    ops.Concat: _concat,
    ops.Alias: _same,
    ops.Rename: _same,
    ops.Split: _reshape,
    ops.Merge: _merge,
}
