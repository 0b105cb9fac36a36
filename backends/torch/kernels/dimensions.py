"""Kernels that move no number to another: parts, joins, and the same numbers under other names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import Call, Kernel
from shardwright.backends.torch.tensors import aligned
from shardwright.ir import ops
from shardwright.ir.operation import Operation

if TYPE_CHECKING:
    from torch import Tensor


def _take(operation: ops.Take, call: Call) -> Tensor:
    value = call.tensor(0)
    at = value.names.index(operation.dim)
    if operation.stop is None:
        return value.tensor.select(at, operation.start)
    return value.tensor.narrow(at, operation.start, operation.stop - operation.start)


def _concat(operation: ops.Concat, call: Call) -> Tensor:
    import torch

    names = call.result.names
    values = [aligned(call.tensor(i), names) for i in range(len(call.args))]
    return torch.cat(values, dim=names.index(operation.dim))


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
