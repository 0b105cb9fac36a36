"""Kernels of operations element by element: arithmetic, comparison, functions, and changes of format."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shardwright.backends.number_formats import integer_range
from shardwright.backends.torch.kernels.call import Call, Kernel, literal, operand
from shardwright.backends.torch.tensors import Named, aligned, held_as
from shardwright.ir import ops
from shardwright.ir.operation import Number, Operation
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor


def _elementwise(function: str | Callable[..., Tensor]) -> Kernel:
    """A function of aligned operands, one of torch's by its name. Arithmetic on bool is that of 0 and 1, and what is
    not 0 is true."""

    def kernel(_operation: Operation, call: Call) -> Tensor:
        import torch

        dtype = next(arg.dtype for arg in call.args if isinstance(arg, Named))
        tensors = [operand(arg, dtype, call.result.names, call.device) for arg in call.args]
        if dtype is DType.BOOL:
            tensors = [tensor.to(torch.int64) for tensor in tensors]
        return (getattr(torch, function) if isinstance(function, str) else function)(*tensors)

    return kernel


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """Between integers rounded towards minus infinity; 0 where the divisor is 0."""
    import torch

    if a.dtype.is_floating_point:
        return a / b
    safe = torch.where(b == 0, torch.ones_like(b), b)
    return torch.where(b == 0, torch.zeros_like(a), torch.div(a, safe, rounding_mode="floor"))


def _where(_operation: ops.Where, call: Call) -> Tensor:
    import torch

    names, dtype = call.result.names, call.result.dtype
    chosen, other = (operand(arg, dtype, names, call.device) for arg in call.args[1:])
    return torch.where(aligned(call.tensor(0), names), chosen, other)


def _convert(operation: ops.Convert, call: Call) -> Tensor:
    """From floats to integers: towards zero, saturating, NaN to 0. To bool: whether it differs from 0."""
    import torch

    value = call.tensor(0)
    tensor = aligned(value, call.result.names)
    if operation.dtype is DType.BOOL:
        return tensor != 0
    if operation.dtype.is_integer and value.dtype.is_float:
        low, high = integer_range(operation.dtype)
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


def _gelu(operation: ops.Gelu, call: Call) -> Tensor:
    from torch.nn import functional

    x = aligned(call.tensor(0), call.result.names)
    return functional.gelu(x, approximate="tanh" if operation.form == "tanh" else "none")


def _silu(x: Tensor) -> Tensor:
    from torch.nn import functional

    return functional.silu(x)


def _full(operation: ops.Full, call: Call) -> Tensor:
    number = call.args[0]
    assert isinstance(number, Number)
    return literal(number, operation.dtype, call.device)


KERNELS: dict[type[Operation], Kernel] = {
    ops.Add: _elementwise("add"),
    ops.Sub: _elementwise("sub"),
    ops.Mul: _elementwise("mul"),
    ops.Div: _elementwise(_divide),
    ops.Neg: _elementwise("neg"),
    ops.Maximum: _elementwise("maximum"),
    ops.Minimum: _elementwise("minimum"),
    ops.Less: _elementwise("lt"),
    ops.LessEqual: _elementwise("le"),
    ops.Equal: _elementwise("eq"),
    ops.LogicalAnd: _elementwise("logical_and"),
    ops.LogicalOr: _elementwise("logical_or"),
    ops.LogicalNot: _elementwise("logical_not"),
    ops.Where: _where,
    ops.Gelu: _gelu,
    ops.Silu: _elementwise(_silu),
    ops.Relu: _elementwise("relu"),
    ops.Exp: _elementwise("exp"),
    ops.Log: _elementwise("log"),
    ops.Log1p: _elementwise("log1p"),
    ops.Sqrt: _elementwise("sqrt"),
    ops.Rsqrt: _elementwise("rsqrt"),
    ops.Tanh: _elementwise("tanh"),
    ops.Sigmoid: _elementwise("sigmoid"),
    ops.Cos: _elementwise("cos"),
    ops.Sin: _elementwise("sin"),
    ops.Abs: _elementwise("abs"),
    ops.Convert: _convert,
    ops.Bitcast: _bitcast,
    ops.Full: _full,
}
