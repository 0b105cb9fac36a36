"""Kernels of operations element by element: arithmetic, comparison, functions, and changes of format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.kernels.call import Kernel, TensorCall
from shardwright.backends.torch.tensors import NamedTensor, aligned, held_as
from shardwright.ir import ops
from shardwright.ir.operation import Number, Operation
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor


_BESIDE_NUMBERS = {"+", "-", "*", "/", "less", "less_equal", "equal"}
"""Operators, beside which a number can stand as it is written."""


def _elementwise(operation: ops.TableOperation, call: TensorCall) -> Tensor:
    entry, dtype = operation.entry, next(a.dtype for a in reversed(call.args) if isinstance(a, NamedTensor))
    plain = operation.keyword in _BESIDE_NUMBERS and entry.spelled(dtype) is entry.spelling
    operands: list[Any] = [
        _bare(arg, dtype) if plain and isinstance(arg, Number) and _is_of(arg, dtype) else call.operand(i, dtype)
        for i, arg in enumerate(call.args)
    ]
    if dtype is DType.BOOL:
        operands = [o.long() if takes == "value" else o for o, takes in zip(operands, entry.takes, strict=True)]
    return entry.spelled(dtype).torch(call.torch, *operands)


def _bare(number: Number, dtype: DType) -> float:
    return float(number.value) if dtype.is_float else int(number.value)


def _is_of(number: Number, dtype: DType) -> bool:
    """True if arithmetic with the number as it is written is that with what it is in this format."""
    if dtype.is_integer:
        low, high = dtype.integer_range
        return low <= number.value <= high
    return dtype is DType.F32 and abs(number.value) < 1e38


def _convert(operation: ops.Convert, call: TensorCall) -> Tensor:
    """From floats to integers: towards zero, saturating, NaN to 0. To 8-bit floats: saturating. To bool: whether it
    differs from 0."""
    value = call.tensor(0)
    tensor = aligned(value, call.result.names)
    if operation.dtype is DType.BOOL:
        return tensor != 0
    if operation.dtype.is_integer and value.dtype.is_float:
        low, high = operation.dtype.integer_range
        return call.torch.nan_to_num(tensor.double().trunc(), nan=0.0).clamp(low, high).long()
    if operation.dtype.is_f8 and value.dtype is not operation.dtype:
        largest = operation.dtype.positive_range[1]
        return tensor.float().clamp(-largest, largest)
    return tensor


def _bitcast(operation: ops.Bitcast, call: TensorCall) -> Tensor:
    def word(dtype: DType) -> Any:
        return held_as(dtype, call.torch) if dtype.is_float else getattr(call.torch, f"int{dtype.bits}")

    value = call.tensor(0)
    return aligned(value, call.result.names).contiguous().to(word(value.dtype)).view(word(operation.dtype))


def _full(operation: ops.Full, call: TensorCall) -> Tensor:
    number = call.args[0]
    assert isinstance(number, Number)
    made = call.number(number, operation.dtype)
    return made.expand(tuple(dim.size for dim in call.result.dims)) if call.result.dims else made


KERNELS: dict[type[Operation], Kernel] = {
    **dict.fromkeys((ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Neg, ops.Function), _elementwise),
    ops.Convert: _convert,
    ops.Bitcast: _bitcast,
    ops.Full: _full,
}
