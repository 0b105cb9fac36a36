"""Kernels of operations element by element: arithmetic, comparison, functions, and changes of format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import Call, Kernel, literal, operand
from shardwright.backends.torch.tensors import Named, aligned, held_as
from shardwright.ir import ops
from shardwright.ir.operation import Number, Operation
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor


def _elementwise(operation: ops.Tabled, call: Call) -> Tensor:
    import torch

    entry, dtype = operation.entry, next(a.dtype for a in reversed(call.args) if isinstance(a, Named))
    tensors = [operand(arg, dtype, call.result.names, call.device) for arg in call.args]
    if dtype is DType.BOOL:
        tensors = [t.to(torch.int64) if takes == "value" else t for t, takes in zip(tensors, entry.takes, strict=True)]
    return entry.spelled(dtype).torch(torch, *tensors)


def _convert(operation: ops.Convert, call: Call) -> Tensor:
    """From floats to integers: towards zero, saturating, NaN to 0. To bool: whether it differs from 0."""
    import torch

    value = call.tensor(0)
    tensor = aligned(value, call.result.names)
    if operation.dtype is DType.BOOL:
        return tensor != 0
    if operation.dtype.is_integer and value.dtype.is_float:
        low, high = operation.dtype.integer_range
        return torch.nan_to_num(tensor.double().trunc(), nan=0.0).clamp(low, high).to(torch.int64)
    return tensor


def _bitcast(operation: ops.Bitcast, call: Call) -> Tensor:
    import torch

    words = {32: torch.int32, 16: torch.int16, 8: torch.int8}
    value = call.tensor(0)
    tensor = aligned(value, call.result.names).contiguous()
    if not value.dtype.is_float:
        tensor = tensor.to(words[value.dtype.bits])
    made = tensor.view(held_as(operation.dtype) if operation.dtype.is_float else words[operation.dtype.bits])
    return made if operation.dtype.is_float else made.to(torch.int64)


def _full(operation: ops.Full, call: Call) -> Tensor:
    number = call.args[0]
    assert isinstance(number, Number)
    return literal(number, operation.dtype, call.device)


KERNELS: dict[type[Operation], Kernel] = {
    **dict.fromkeys((ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Neg, ops.Function), _elementwise),
    ops.Convert: _convert,
    ops.Bitcast: _bitcast,
    ops.Full: _full,
}
