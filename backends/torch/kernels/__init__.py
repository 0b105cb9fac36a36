"""Every operation of the language as functions of torch tensors, on one device.

The meanings are those of `backends.simulation.kernels`; values are rounded to their declared formats as they are
computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels import attention, dimensions, elementwise, indices, reductions
from shardwright.backends.torch.kernels.call import Kernel, TensorCall
from shardwright.backends.torch.tensors import Argument, NamedTensor, rounded
from shardwright.ir import ops
from shardwright.ir.diagnostics import NOWHERE, fault, placed
from shardwright.ir.operation import Operation
from shardwright.ir.ops import Movement
from shardwright.ir.program import Program
from shardwright.ir.types import DType, Shape
from shardwright.ir.walk import lets

if TYPE_CHECKING:
    import torch

    from shardwright.backends.torch.chip import RankShard

VIEWS = (ops.Rename, ops.Take, ops.Split, ops.Merge, ops.Alias, ops.Convert, ops.Bitcast)
"""Operations whose result may be a part of their operand's memory."""

KERNELS: dict[type[Operation], Kernel] = (
    elementwise.KERNELS | reductions.KERNELS | attention.KERNELS | indices.KERNELS | dimensions.KERNELS
)
"""One kernel for each operation that is no movement."""


def check_kernels(program: Program) -> None:
    """Raises at the first statement whose operation PyTorch has no kernel for, before anything runs."""
    for let, _ in lets(program):
        if not isinstance(let.operation, Movement):
            with placed(let.span):
                kernel_of(let.operation)


def kernel_of(operation: Operation) -> Kernel:
    """Raises where there is none."""
    kernel = KERNELS.get(type(operation))
    if kernel is None:
        raise fault(
            "unsupported",
            f"PyTorch programs have no {operation.keyword or type(operation).__name__.lower()}",
            NOWHERE,
            "run it under JAX: --to jax",
        )
    return kernel


def compute(
    operation: Operation,
    args: Sequence[Argument],
    results: Sequence[Shape],
    device: torch.device,
    held: Sequence[RankShard] | None = None,
) -> tuple[NamedTensor, ...]:
    """The results of an operation that moves nothing between chips, rounded to their formats. With `held`, what one
    chip has of them, of operands of which it has a part, too."""
    import torch

    from shardwright.backends.torch import functions

    if held is not None:
        results = [each.shape for each in held]
    made = kernel_of(operation)(
        operation, TensorCall(args, results, device, held[0] if held else None, torch, functions)
    )
    tensors = made if isinstance(made, tuple) else (made,)
    exact = keeps_format(operation, args, results[0].dtype)
    return tuple(
        NamedTensor(
            tensor if exact or tensor.is_complex() else rounded(tensor, shape.dtype),
            shape.names,
            shape.dtype,
            held[i] if held else None,
        )
        for i, (tensor, shape) in enumerate(zip(tensors, results, strict=True))
    )


_ARITHMETIC = (
    ops.Add,
    ops.Sub,
    ops.Mul,
    ops.Div,
    ops.Neg,
    ops.Function,
    ops.Sum,
    ops.Contract,
    ops.Grouped,
    ops.Cumsum,
)
_CHOOSING = (ops.Rename, ops.Alias, ops.Take, ops.Lookup, ops.Update, ops.Concat, ops.Split, ops.Merge, ops.Max)
_IN_F32 = (ops.Rmsnorm, ops.Layernorm, ops.Softmax, ops.Uniform)


_EXTREMES = ("minimum", "maximum")
"""Functions whose result is one of two operands."""


def keeps_format(operation: Operation, args: Sequence[Argument], result: DType) -> bool:
    """True if the kernel gives numbers of the result's format by itself: they are among those that it is given, or
    floats that PyTorch rounds so."""
    same = all(arg.dtype is result for arg in args[:1] if isinstance(arg, NamedTensor))
    if isinstance(operation, _CHOOSING) and same:
        return True
    if isinstance(operation, ops.Rotary | ops.Full):
        return True
    if isinstance(operation, ops.TableOperation):
        if operation.entry.gives_bool:
            return True
        if operation.keyword in _EXTREMES and result is not DType.BOOL:
            return all(arg.dtype is result for arg in args if isinstance(arg, NamedTensor))
    if isinstance(operation, _IN_F32):
        return result is DType.F32
    floats = [arg.dtype for arg in args if isinstance(arg, NamedTensor) and arg.dtype is not DType.BOOL]
    return result.is_float and isinstance(operation, _ARITHMETIC) and bool(floats) and all(d is result for d in floats)
