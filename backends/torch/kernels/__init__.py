"""Every operation of the language as functions of torch tensors, on one device.

The meanings are those of `backends.kernels`; values are rounded to their declared formats as they are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels import attention, dimensions, elementwise, indices, reductions
from shardwright.backends.torch.kernels.call import Call, Kernel
from shardwright.backends.torch.tensors import Argument, Named, held_as, rounded
from shardwright.ir import ops
from shardwright.ir.diagnostics import NOWHERE, fault, placed
from shardwright.ir.operation import Operation
from shardwright.ir.ops import Movement
from shardwright.ir.program import Let, Program
from shardwright.ir.types import DType, Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from shardwright.backends.torch.chip import Held

KERNELS: dict[type[Operation], Kernel] = (
    elementwise.KERNELS | reductions.KERNELS | attention.KERNELS | indices.KERNELS | dimensions.KERNELS
)
"""One kernel for each operation that is no movement."""


def check_kernels(program: Program) -> None:
    """Raises at the first statement whose operation PyTorch has no kernel for, before anything runs."""
    for func in program.funcs:
        for statement, _ in func.walk():
            if isinstance(statement, Let) and not isinstance(statement.operation, Movement):
                with placed(statement.span):
                    kernel_of(statement.operation)


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
    held: Sequence[Held] | None = None,
) -> tuple[Named, ...]:
    """The results of an operation that moves nothing between chips, rounded to their formats. With `held`, what one
    chip has of them, of operands of which it has a part, too."""
    if held is not None:
        results = [each.shape for each in held]
    made = kernel_of(operation)(operation, Call(args, results, device, held[0] if held else None))
    tensors = made if isinstance(made, tuple) else (made,)
    chosen = _chooses(operation, args)

    def kept(tensor: Tensor, dtype: DType) -> Tensor:
        return tensor.to(held_as(dtype)) if chosen and dtype.is_integer else rounded(tensor, dtype)

    return tuple(
        Named(
            kept(tensor, shape.dtype).expand([dim.size for dim in shape.dims]),
            shape.names,
            shape.dtype,
            held[i] if held else None,
        )
        for i, (tensor, shape) in enumerate(zip(tensors, results, strict=True))
    )


def _chooses(operation: Operation, args: Sequence[Argument]) -> bool:
    """Whether the integers that it gives are among those that it is given, or bools, and need not wrap around."""
    match operation:
        case ops.Convert():
            return isinstance(args[0], Named) and args[0].dtype is DType.BOOL
        case ops.Function("where") | ops.Rename() | ops.Take() | ops.Lookup():
            return all(isinstance(arg, Named) for arg in args)
        case _:
            return False
